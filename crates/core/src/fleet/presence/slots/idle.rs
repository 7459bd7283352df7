//! Slots that belong to no hash are moved to the end of the table, and the end is cut off.

use super::{Counts, LIMBO, LimboId, NOWHERE, Slot, SlotId, Slots, Whereabouts, decode};
use crate::fleet::presence::moved::{Moved, idle_in_table};
use crate::key_table::KeyTable;

impl Slots {
    /// Points the slots at the new places of the nodes that moved.
    pub(crate) fn follow(&mut self, moved: &Moved) {
        for slot in &mut self.table {
            if slot.place & LIMBO == 0 && slot.place >= moved.end {
                slot.place = moved.place_of(slot.place).unwrap_or(NOWHERE);
            }
        }
        self.sharing.follow(moved);
    }

    /// Moves at most this many slots from the end to free places, and gives back the spare
    /// capacity. Calls `moved_entry` with each undecided hash that has a new slot.
    pub(crate) fn give_back(&mut self, most: usize, mut moved_entry: impl FnMut(LimboId, SlotId)) {
        let end = self.len().max(self.table.len().saturating_sub(most));
        let end = u32::try_from(end).expect("fewer than 2^32 hashes");
        self.free.retain(|&id| id < end);
        let mut stirred = Vec::new();
        let to = (end..).take(self.table.len() - end as usize);
        let to = to.map(|id| self.move_to_free(id, &mut moved_entry, &mut stirred));
        let moved = Moved {
            end,
            to: to.collect(),
        };
        self.newest = self.newest.filter(|newest| newest.0 < end);
        self.table.truncate(end as usize);
        self.table.shrink_to_fit();
        self.stirred.retain(|&id| id < end);
        self.stirred.extend(stirred);
        let retired = std::mem::take(&mut self.retired).into_iter();
        self.retired = retired.filter_map(|id| moved.place_of(id)).collect();
        self.free.shrink_to_fit();
        if self.free.is_empty() {
            self.by_key.give_back();
            self.more.shrink_to_fit();
            self.sharing.give_back();
        }
    }

    fn move_to_free(
        &mut self,
        from: u32,
        moved_entry: &mut impl FnMut(LimboId, SlotId),
        stirred: &mut Vec<u32>,
    ) -> Option<u32> {
        let slot = self.table[from as usize];
        if slot.place == NOWHERE {
            return None;
        }
        let to = self.free.pop()?;
        let was_listed = self.table[to as usize].stirred;
        self.table[to as usize] = Slot {
            stirred: slot.stirred || was_listed,
            ..slot
        };
        if slot.stirred && !was_listed {
            stirred.push(to);
        }
        self.by_key.remove(slot.key, from);
        self.by_key.insert(slot.key, to);
        if let Some(counts) = self.more.remove(&from) {
            self.more.insert(to, counts);
        }
        if let Whereabouts::Limbo(entry) = decode(slot.place) {
            moved_entry(entry, SlotId(to));
        }
        Some(to)
    }

    /// The bytes of spare capacity in the tables.
    #[must_use]
    pub(crate) fn idle_bytes(&self) -> usize {
        (self.table.capacity() - self.len()) * size_of::<Slot>()
            + (self.free.capacity() + self.retired.capacity() - self.retired.len()) * 4
            + idle_in_table(self.by_key.bytes(), self.len(), KeyTable::ENTRY)
            + idle_in_table(
                self.more.allocation_size(),
                self.more.len(),
                size_of::<(u32, Counts)>(),
            )
            + self.sharing.idle_bytes()
    }
}
