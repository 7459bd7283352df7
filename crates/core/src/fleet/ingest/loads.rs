//! What stores show of the loads of adapters, and what the newest load holds.

use std::ops::Range;

use super::apply::Slice;
use super::naming::lora;
use crate::fleet::presence::slots::Whereabouts;
use crate::wire::{Medium, Stored};

impl Slice<'_> {
    /// Notes what a dense store under an adapter shows of its loads. On other tiers than the GPU,
    /// what earlier loads left may be stored too.
    pub(in crate::fleet) fn note_load(&mut self, stored: &Stored, named: Range<usize>) {
        let publisher = self.rank.catalog.config.publisher;
        let name = lora(self.batch, stored);
        if !publisher.hashes_loads() || !matches!(stored.medium, Medium::Gpu) || name.is_none() {
            return;
        }
        let seed = self.marks.lora_seed(name);
        let slots = &self.progress.slots[named];
        for (i, &slot) in slots.iter().enumerate() {
            let Whereabouts::Placed(node) = self.rank.slots.whereabouts(slot) else {
                continue;
            };
            let nodes = &*self.shared.nodes;
            let (key, hash) = (nodes.key(node), self.rank.slots.key(slot, nodes));
            let is_root = i == 0 && stored.parent.is_none();
            if is_root && self.rank.adapters.note_root(seed, key, hash) {
                self.rank.counts.refuse("adapter_loaded_again", 1);
            }
            self.rank.adapters.note(seed, key, hash);
        }
    }
}
