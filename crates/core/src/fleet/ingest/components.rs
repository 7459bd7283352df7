//! The components of SGLang's blocks as groups of the index.
//!
//! Invariant: the copies of a component are counted in the first group of its kind. The windows and states
//! of a pod without such a group are counted in groups of their own, which no view has. Nothing is
//! promised or excluded by windows and states: no released engine publishes them, and whether one that
//! does leaves anything out is not known. What they are counted for is that they never pass for full
//! attention, that a hash known by nothing else is known, and that they are shown.
//!
//! Two forms exist. Either an event is about one component, or a store lists all that its blocks have
//! from then on (it is sent again when that changes, so it is no further copy), and a removal is of all.

use super::apply::Slice;
use crate::fleet::pod::catalog::{Catalog, UNGROUPED};
use crate::fleet::presence::slots::{ChannelId, ChannelKey, SlotId};
use crate::spec::SpecKind;
use crate::wire::{Component, Components, Stored};

/// The components besides full attention.
const OTHERS: [Component; 2] = [Component::Window, Component::State];

impl Catalog {
    /// The group of an event, which may be about one component alone.
    pub(in crate::fleet) fn group_of(
        &self,
        group: Option<u32>,
        component: Option<Component>,
    ) -> u16 {
        let is_kind: fn(SpecKind) -> bool = match component {
            None | Some(Component::Full) => return self.resolve(group),
            Some(Component::Window) => {
                |kind| kind.is_window() || kind == SpecKind::ChunkedLocalAttention
            }
            Some(Component::State) => |kind| kind == SpecKind::Mamba,
        };
        let groups = self.configured_groups().unwrap_or_default();
        let found = (0u16..).zip(groups).find(|(_, g)| is_kind(g.kind));
        let own = UNGROUPED - component.map_or(0, |component| component as u16);
        found.map_or(own, |(index, _)| index)
    }

    /// Notes the components that a store names, if any. Returns whether the operator listed the groups
    /// and none of them is of the kind of one of these components.
    pub(in crate::fleet) fn note_components(&mut self, stored: &Stored) -> bool {
        let listed = stored.components.iter().flat_map(|listed| listed.iter());
        let mut lacks_group = false;
        for component in stored.component.into_iter().chain(listed) {
            self.shows_components = true;
            let group = usize::from(self.group_of(None, Some(component)));
            let groups = self.configured_groups();
            lacks_group |= groups.is_some_and(|groups| group >= groups.len());
        }
        lacks_group
    }
}

impl Slice<'_> {
    /// Counts the copies of blocks whose components the engine lists: what is listed is there once, what
    /// is not is gone.
    pub(in crate::fleet) fn replace_components(
        &mut self,
        listed: Components,
        channel: ChannelId,
        slots: &[SlotId],
    ) {
        let full = self.rank.slots.channels.get(channel).key;
        let keys = self.component_keys(full);
        let (there, gone): (Vec<_>, Vec<_>) = keys.into_iter().partition(|(c, _)| listed.has(*c));
        for &slot in slots {
            for (_, key) in &there {
                let channel = self.rank.channel_of_store(*key, self.shared.planes);
                let news = channel.filter(|c| !self.rank.slots.holds(slot, *c));
                if let Some(channel) = news {
                    self.rank.add_copy(slot, channel, &mut self.shared);
                }
            }
            for (_, key) in &gone {
                self.rank.remove_copy(slot, *key, self.shared.planes);
            }
        }
    }

    /// Removes the other components of blocks of which all is removed.
    pub(in crate::fleet) fn remove_other_components(&mut self, slot: SlotId, full: ChannelKey) {
        for (component, key) in self.component_keys(full) {
            if component != Component::Full {
                self.rank.remove_copy(slot, key, self.shared.planes);
            }
        }
    }

    /// The channels of all components, like that of full attention.
    fn component_keys(&self, full: ChannelKey) -> Vec<(Component, ChannelKey)> {
        let others = OTHERS.iter().map(|&component| {
            let key = ChannelKey {
                group: self.rank.catalog.group_of(None, Some(component)),
                partial: false,
                ..full
            };
            (component, key)
        });
        let first = (Component::Full, full);
        [first].into_iter().chain(others).collect()
    }
}
