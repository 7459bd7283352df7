//! What one rank ceases to hold at once: a clear, a restart, a loss, a memory limit.

use smallvec::SmallVec;

use super::engine_chain::EngineChain;
use super::nodes::NodeId;
use super::rank::{Rank, Shared};
use super::slots::{Channel, ChannelId, ChannelKey, SlotId, Whereabouts};
use super::tier::Tier;

impl Rank {
    /// The engine dropped its GPU tier. Copies on other tiers are in doubt from now on.
    pub(super) fn clear(&mut self, shared: &mut Shared<'_>) {
        for slot in self.slots.take_stirred() {
            self.clear_slot(slot, shared);
        }
        self.slots.sharing.forget();
        self.forgot.remove(Tier::Gpu);
    }

    /// The engine restarted: hashes may mean other prefixes now.
    pub(super) fn restart(&mut self, shared: &mut Shared<'_>, chain: EngineChain) {
        self.clear(shared);
        let slots: Vec<SlotId> = self
            .slots
            .iter()
            .filter(|&s| !self.slots.is_held(s))
            .collect();
        for slot in slots {
            self.forget_name(slot, shared);
        }
        self.limbo.sweep(&mut self.slots);
        self.chain = chain;
        self.contradicted = None;
        self.saw_media = false;
    }

    fn clear_slot(&mut self, slot: SlotId, shared: &mut Shared<'_>) {
        self.effort.note(1);
        let held: SmallVec<[ChannelId; 8]> = self.slots.held_channels(slot).collect();
        for channel in held {
            let key = self.slots.channel(channel).key;
            if key.doubted || key.tier == Tier::Gpu {
                continue;
            }
            let doubted = ChannelKey {
                doubted: true,
                ..key
            };
            let twin = self.channel(doubted, shared.planes);
            self.has_doubts = true;
            if !self.slots.holds(slot, twin) && self.slots.add_doubt(slot, twin) {
                (self.slots).show(slot, twin, shared.planes, self.column.1);
            }
        }
        self.drop_channels(slot, |key| !key.doubted || key.tier == Tier::Gpu, shared);
    }

    /// Drops all copies of some channels at a slot.
    fn drop_channels(
        &mut self,
        slot: SlotId,
        drops: impl Fn(ChannelKey) -> bool,
        shared: &mut Shared<'_>,
    ) {
        let held: SmallVec<[ChannelId; 8]> = self.slots.held_channels(slot).collect();
        for channel in held {
            let Channel { key, plane } = self.slots.channel(channel);
            if drops(key) {
                self.slots.drop_copies(slot, channel);
                self.hide(slot, plane, shared.planes);
            }
        }
        self.retire_if_bare(slot);
    }

    /// Drops everything that is held on any tier: it is no longer known to be there.
    pub(super) fn lose(&mut self, shared: &mut Shared<'_>) {
        let slots: Vec<SlotId> = self.slots.iter().collect();
        for slot in slots {
            self.drop_channels(slot, |_| true, shared);
        }
        self.slots.sharing.forget();
        self.forgot = Tier::ALL.into_iter().collect();
    }

    /// Remembers that the tiers which have a copy here are not known any more.
    fn forget_copies(&mut self, slot: SlotId) {
        for channel in self.slots.held_channels(slot) {
            self.forgot.insert(self.slots.channel(channel).key.tier);
        }
    }

    /// Drops what stands at nodes that must go.
    pub(super) fn evict(&mut self, is_doomed: impl Fn(NodeId) -> bool, shared: &mut Shared<'_>) {
        let doomed: Vec<SlotId> = self
            .slots
            .iter()
            .filter(|&slot| match self.slots.whereabouts(slot) {
                Whereabouts::Placed(node) => is_doomed(node),
                Whereabouts::Limbo(_) => false,
            })
            .collect();
        for slot in doomed {
            self.forget_copies(slot);
            self.drop_channels(slot, |_| true, shared);
            self.forget_name(slot, shared);
        }
    }

    /// Drops everything undecided.
    pub(super) fn evict_limbo(&mut self, shared: &mut Shared<'_>) {
        for slot in self.limbo.take_all() {
            self.effort.note(1);
            self.forget_copies(slot);
            self.drop_channels(slot, |_| true, shared);
            self.slots.forget(slot);
        }
    }
}
