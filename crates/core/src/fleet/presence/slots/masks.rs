//! Which channels have a copy of each slot: one bit per channel, up to 64.
//!
//! Most ranks have few channels, so bits are kept in columns of eight channels each, and a column is
//! made when one of its channels first has a copy.

use super::{ChannelId, SlotId};

/// The channels of a column.
const COLUMN: u16 = 8;

/// The bits of all slots of one rank.
#[derive(Debug, Default)]
pub(super) struct Masks {
    len: usize,
    columns: Vec<Vec<u8>>,
}

const fn address(channel: ChannelId) -> (usize, u8) {
    ((channel.0 / COLUMN) as usize, 1 << (channel.0 % COLUMN))
}

impl Masks {
    /// Adds a slot at the end, without bits.
    pub(super) fn push(&mut self) {
        self.len += 1;
        for column in &mut self.columns {
            column.push(0);
        }
    }

    /// All bits of a slot.
    pub(super) fn get(&self, slot: SlotId) -> u64 {
        let columns = (0..).step_by(COLUMN.into()).zip(&self.columns);
        columns.fold(0, |mask, (shift, column)| {
            mask | u64::from(column[slot.0 as usize]) << shift
        })
    }

    pub(super) fn has(&self, slot: SlotId, channel: ChannelId) -> bool {
        let (at, bit) = address(channel);
        let column = self.columns.get(at);
        column.is_some_and(|column| column[slot.0 as usize] & bit != 0)
    }

    pub(super) fn set(&mut self, slot: SlotId, channel: ChannelId) {
        let (at, bit) = address(channel);
        while self.columns.len() <= at {
            self.columns.push(vec![0; self.len]);
        }
        self.columns[at][slot.0 as usize] |= bit;
    }

    /// Clears a bit. Returns whether it was set.
    pub(super) fn clear(&mut self, slot: SlotId, channel: ChannelId) -> bool {
        let was_set = self.has(slot, channel);
        if was_set {
            let (at, bit) = address(channel);
            self.columns[at][slot.0 as usize] &= !bit;
        }
        was_set
    }

    /// Clears all bits of a slot.
    pub(super) fn clear_all(&mut self, slot: SlotId) {
        for column in &mut self.columns {
            column[slot.0 as usize] = 0;
        }
    }

    /// Gives a slot, which has none, the bits of another one.
    pub(super) fn copy(&mut self, from: SlotId, to: SlotId) {
        for column in &mut self.columns {
            column[to.0 as usize] = column[from.0 as usize];
        }
    }

    /// Whether no slot has a bit.
    pub(super) fn are_clear(&self) -> bool {
        self.columns.iter().flatten().all(|&bits| bits == 0)
    }

    /// Cuts off the slots from this number on.
    pub(super) fn cut_off(&mut self, end: usize) {
        self.len = end;
        for column in &mut self.columns {
            column.truncate(end);
            column.shrink_to_fit();
        }
    }

    /// The bytes of spare capacity, where this many slots are in use.
    pub(super) fn idle_bytes(&self, slots: usize) -> usize {
        self.bytes() - self.columns.len() * slots
    }

    /// Bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        self.columns.iter().map(Vec::capacity).sum()
    }
}
