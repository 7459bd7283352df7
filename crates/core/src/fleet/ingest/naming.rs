//! How a store's tokens and parent give the places of its hashes: the first two means of placing.
//!
//! A dense store (it lists the hash of every block) names all its boundaries. The place of a hash
//! never changes, so all dense stores of a batch are named before any copy is counted, and the
//! order of the groups does not matter. A sparse store is looked up by its hashes, and those that
//! stay unknown wait in limbo with everything that the store tells about them.

use std::ops::Range;

use super::namespace;
use crate::fleet::keys::texts::Marks;
use crate::fleet::keys::units::Units;
use crate::fleet::limbo::{Fact, Frame, Limbo, Position, Salt};
use crate::fleet::pod::engine_chain::{HashBlock, RootHashes, RootStore};
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::nodes::{NodeId, Nodes, Place};
use crate::fleet::presence::slots::{EngineKey, LimboId, SlotId, Whereabouts};
use crate::fleet::rank::Rank;
use crate::prefix::{PrefixKey, Step, plus};
use crate::wire::{Batch, ExtraKey, Span, Stored};

/// Whether a store lists the hash of every block of its tokens.
#[must_use]
pub(in crate::fleet) fn is_dense(stored: &Stored) -> bool {
    !stored.hashes.is_empty()
        && stored.block_size > 0
        && u64::from(stored.tokens.len)
            == u64::from(stored.hashes.len) * u64::from(stored.block_size)
}

/// One store while its hashes are named.
pub(in crate::fleet) struct Naming<'a, 'b> {
    /// The rank that the store belongs to.
    pub rank: &'a mut Rank,
    /// The model's boundaries and bits.
    pub shared: &'a mut SharedPresence<'b>,
    /// The numbers that texts and lookahead tokens add to keys.
    pub marks: &'a Marks,
    /// Prepared steps by block size.
    pub units: &'a mut Units,
    /// A buffer for the keys of the blocks that are being named.
    pub keys: &'a mut Vec<PrefixKey>,
    /// The batch that the store is in.
    pub batch: &'a Batch,
}

/// Where the tokens of a store start, and the salt of the cache that they are in.
#[derive(Debug, Clone, Copy)]
pub(in crate::fleet) struct StoreStart {
    /// The position of the first token.
    pub(in crate::fleet) at: Position,
    /// The salt of the chain.
    pub(in crate::fleet) salt: Salt,
}

/// A dense store while it is named.
#[derive(Debug)]
pub(in crate::fleet) struct NamedChain {
    /// Where the next block starts.
    anchor: StoreStart,
    /// How many of its blocks are named.
    done: usize,
    /// The node of the last named block.
    hint: Option<NodeId>,
}

impl NamedChain {
    /// How many blocks are named.
    #[must_use]
    pub(in crate::fleet) fn done(&self) -> usize {
        self.done
    }
}

/// The name of the store's adapter.
pub(in crate::fleet) fn lora<'a>(batch: &'a Batch, stored: &Stored) -> Option<&'a str> {
    stored
        .lora_name
        .map(|name| batch.text(name))
        .filter(|name| !name.is_empty())
}

/// The number of an adapter, for older engines that send no adapter name.
fn nameless_lora(batch: &Batch, stored: &Stored) -> Option<i64> {
    stored
        .lora_id
        .filter(|&id| id > 0 && lora(batch, stored).is_none())
}

impl Naming<'_, '_> {
    /// The salt text of a root store, if its first block shows one.
    fn root_salt(&self, stored: &Stored) -> Option<String> {
        if let Some(salt) = stored.salt {
            return Some(self.batch.text(salt).to_owned()).filter(|s| !s.is_empty());
        }
        let mut texts = Vec::new();
        for key in self.batch.extra_keys_of(stored, 0) {
            match key {
                ExtraKey::Text(text) => texts.push(self.batch.text(*text)),
                ExtraKey::Item { .. } | ExtraKey::Digest(_) => {}
            }
        }
        (!texts.is_empty()).then(|| texts.join("\0"))
    }

    /// The key of the empty prefix, for the store's adapter or for the base model.
    fn root_seed(&mut self, stored: &Stored) -> PrefixKey {
        let Some(id) = nameless_lora(self.batch, stored) else {
            return self.marks.lora_seed(lora(self.batch, stored));
        };
        self.rank.counts.refuse("lora_without_name", 1);
        self.rank.unidentified.adapters = true;
        self.marks.lora_seed(Some(&id.to_string()))
    }

    /// The position where the tokens of a store start.
    pub(in crate::fleet) fn anchor(
        &mut self,
        stored: &Stored,
        first_block_is_listed: bool,
    ) -> StoreStart {
        let Some(parent) = stored.parent else {
            let step = Step {
                tokens: 0,
                local: self.root_seed(stored),
            };
            let text = self.root_salt(stored);
            let space = lora(self.batch, stored)
                .is_none()
                .then(|| namespace::space_of(self.rank, self.marks, self.batch, stored));
            let salt = match space.flatten() {
                Some(space) if first_block_is_listed => Salt::Known(space),
                None if first_block_is_listed || text.is_some() => {
                    Salt::Known(self.marks.salt(text.as_deref()))
                }
                Some(_) | None => Salt::Of(self.rank.limbo.new_class(None)),
            };
            return StoreStart {
                at: Position {
                    frame: Frame::Absolute,
                    step,
                },
                salt,
            };
        };
        let anchor = self.below(parent);
        let has_spaces = self.rank.catalog.config.hidden.dynamo_format;
        if let (Salt::Of(class), Some(salt), false) = (anchor.salt, stored.salt, has_spaces) {
            let salt = self.marks.salt(Some(self.batch.text(salt)));
            self.rank.limbo.add_fact(Fact::HasSalt(class, salt));
        }
        anchor
    }

    /// The position where the tokens after a hash start.
    fn below(&mut self, parent: EngineKey) -> StoreStart {
        if let Some(slot) = self.rank.slots.find_parent(parent, self.shared.nodes)
            && let Whereabouts::Placed(node) = self.rank.slots.whereabouts(slot)
        {
            let place = self.shared.nodes.place(node);
            return StoreStart {
                at: Position::of(place),
                salt: Salt::Known(place.salt),
            };
        }
        let Rank { limbo, slots, .. } = &mut *self.rank;
        let entry = limbo.entry(parent, None, slots, self.shared.nodes);
        let (at, class) = self.rank.limbo.anchor(entry);
        StoreStart {
            at,
            salt: Salt::Of(class),
        }
    }

    /// Begins to name a dense store; [`Self::extend`] then names its blocks.
    pub(in crate::fleet) fn begin(&mut self, stored: &Stored) -> NamedChain {
        let anchor = self.anchor(stored, true);
        if stored.parent.is_none() {
            let first = &self.batch.tokens_of(stored.tokens)[..stored.block_size as usize];
            let hash = self.batch.hashes_of(stored.hashes)[0];
            self.check_chain(stored, first, RootHashes::AtTheEnd(hash));
        }
        self.index_first_token(stored, anchor.at);
        NamedChain {
            anchor,
            done: 0,
            hint: None,
        }
    }

    /// Names the next blocks of a dense store; appends the slots of their hashes.
    pub(in crate::fleet) fn extend(
        &mut self,
        stored: &Stored,
        chain: &mut NamedChain,
        count: usize,
        out: &mut Vec<SlotId>,
    ) {
        let StoreStart { at, salt } = chain.anchor;
        let (mut step, block_size) = (at.step, stored.block_size);
        let (first, end) = (chain.done, chain.done + count);
        let hashes = &self.batch.hashes_of(stored.hashes)[first..end];
        self.find_keys(stored, first..end, step.local);
        if count > 1 {
            let keys = hashes.iter().zip(&*self.keys);
            self.rank.slots.fetch(keys, self.shared.nodes);
        }
        for (j, &hash) in (first..).zip(hashes) {
            step = Step {
                tokens: step.tokens + block_size,
                local: self.keys[j - first],
            };
            let ahead = self.ahead(stored, j);
            out.push(match (at.frame, salt) {
                (Frame::Absolute, Salt::Known(salt)) => {
                    let place = Place {
                        boundary: step.tokens,
                        prefix: step.local,
                        ahead,
                        salt,
                    };
                    self.name_placed(hash, place, &mut chain.hint)
                }
                (frame @ (Frame::Absolute | Frame::Trie(_)), salt) => {
                    self.name_floating(hash, Position { frame, step }, salt, ahead)
                }
            });
        }
        self.settle();
        chain.done = end;
        chain.anchor.at.step = step;
        if end < stored.hashes.len as usize {
            self.follow(chain, hashes);
        }
    }

    /// Finds the keys at the ends of some blocks of a dense store, from the key at their start.
    fn find_keys(&mut self, stored: &Stored, blocks: Range<usize>, start: PrefixKey) {
        let size = stored.block_size as usize;
        let tokens = self.batch.tokens_of(stored.tokens);
        let tokens = &tokens[blocks.start * size..blocks.end * size];
        self.keys.clear();
        if stored.extra_keys.is_none_or(Span::is_empty) && !self.batch.has_wide(stored.tokens) {
            let keys = &mut *self.keys;
            return (self.units).with(stored.block_size, |unit| unit.keys(start, tokens, keys));
        }
        for block in blocks {
            let marks = self.marks(stored, block, stored.block_size);
            self.keys.push(marks);
        }
        self.units.with(stored.block_size, |unit| {
            let mut key = start;
            for (chunk, marks) in tokens.chunks_exact(size).zip(self.keys.iter_mut()) {
                key = unit.advance(key, plus(unit.local(chunk), *marks));
                *marks = key;
            }
        });
    }

    /// Updates where a chain stands: solving may have moved the trie that it floats in, and the
    /// chain's last hash tells where it is now.
    fn follow(&mut self, chain: &mut NamedChain, hashes: &[EngineKey]) {
        let is_fixed = matches!(
            (chain.anchor.at.frame, chain.anchor.salt),
            (Frame::Absolute, Salt::Known(_))
        );
        if let (false, Some(&last)) = (is_fixed, hashes.last()) {
            chain.anchor = self.below(last);
        }
    }

    pub(in crate::fleet) fn settle(&mut self) {
        if self.rank.limbo.is_unsettled() {
            self.rank.solve(self.shared);
        }
    }

    fn name_placed(&mut self, hash: EngineKey, place: Place, hint: &mut Option<NodeId>) -> SlotId {
        let usual = self.shared.nodes.of_usual(hash, *hint);
        let slot = (self.rank.slots).find_usual(hash, usual, self.shared.nodes);
        let Some(slot) = slot else {
            let node = self.shared.nodes.find_or_create(place, *hint);
            self.shared.nodes.acquire(node);
            *hint = Some(node);
            return self
                .rank
                .slots
                .insert_at(hash, node, usual, self.shared.nodes);
        };
        match self.rank.slots.whereabouts(slot) {
            Whereabouts::Placed(node) => {
                *hint = Some(node);
                if !self.shared.nodes.is_at(node, place) {
                    self.rank.contradict("contradicts_earlier_place");
                }
            }
            Whereabouts::Limbo(entry) => stands_at(&mut self.rank.limbo, entry, place),
        }
        slot
    }

    fn name_floating(&mut self, hash: EngineKey, at: Position, salt: Salt, ahead: u64) -> SlotId {
        let limbo = &mut self.rank.limbo;
        if let Some(slot) = self.rank.slots.find(hash, self.shared.nodes)
            && let Whereabouts::Placed(node) = self.rank.slots.whereabouts(slot)
        {
            let place = self.shared.nodes.place(node);
            if let Salt::Of(class) = salt {
                limbo.add_fact(Fact::HasSalt(class, place.salt));
            }
            let is_elsewhere = at.frame == Frame::Absolute && at != Position::of(place);
            limbo.pin_trie(at, place);
            if is_elsewhere {
                self.rank.contradict("contradicts_earlier_place");
            }
            return slot;
        }
        let entry = limbo.entry(hash, Some(salt), &mut self.rank.slots, self.shared.nodes);
        let own = limbo.class_of(entry);
        limbo.add_fact(match salt {
            Salt::Of(class) => Fact::SameSalt(own, class),
            Salt::Known(label) => Fact::HasSalt(own, label),
        });
        limbo.add_fact(Fact::Stands(entry, at, ahead));
        limbo.slot_of(entry)
    }

    /// Notes the first token of a store right below a hash without a place, so requests can find
    /// it.
    pub(in crate::fleet) fn index_first_token(&mut self, stored: &Stored, at: Position) {
        let Frame::Trie(trie) = at.frame else { return };
        if at.step == Step::NONE
            && let Some(&token) = self.batch.tokens_of(stored.tokens).first()
        {
            self.rank.limbo.index_first_token(trie, token);
        }
    }

    /// Compares a root store with what is known of the engine's hash function.
    pub(in crate::fleet) fn check_chain(
        &mut self,
        stored: &Stored,
        tokens: &[u32],
        shown: RootHashes<'_>,
    ) {
        let keys = self.batch.extra_keys_of(stored, 0);
        let is_text = |key: &ExtraKey| matches!(key, ExtraKey::Text(_));
        // No engine of which a hash function is known has wide tokens.
        if !stored.lookahead.is_empty()
            || self.batch.has_wide(stored.tokens)
            || !keys.iter().all(is_text)
            || nameless_lora(self.batch, stored).is_some()
        {
            return;
        }
        let salt = self.root_salt(stored);
        let unit = self.hash_block();
        let Rank { chain, loras, .. } = &mut *self.rank;
        let lora = match lora(self.batch, stored) {
            Some(name) => match loras.get(name) {
                Some(path) => Some((name, path.as_str())),
                None => return,
            },
            None => None,
        };
        let root = RootStore {
            tokens,
            unit,
            lora,
            salt: salt.as_deref(),
            shown,
        };
        if !chain.check(&root) {
            self.rank.contradict("contradicts_hash_function");
        }
    }

    pub(in crate::fleet) fn hash_block(&self) -> HashBlock {
        let catalog = &self.rank.catalog;
        catalog
            .configured_hash_block()
            .map_or_else(|| HashBlock::Divides(catalog.grain()), HashBlock::Is)
    }

    /// Tells that a hash of a request's chain stands at this place.
    pub(in crate::fleet) fn place(rank: &mut Rank, hash: EngineKey, place: Place, nodes: &Nodes) {
        let slot = rank.slots.find(hash, nodes);
        if let Some(Whereabouts::Limbo(entry)) = slot.map(|slot| rank.slots.whereabouts(slot)) {
            stands_at(&mut rank.limbo, entry, place);
        }
    }
}

/// Tells where an undecided hash stands.
fn stands_at(limbo: &mut Limbo, entry: LimboId, place: Place) {
    let class = limbo.class_of(entry);
    limbo.add_fact(Fact::HasSalt(class, place.salt));
    limbo.add_fact(Fact::Stands(entry, Position::of(place), place.ahead));
}
