//! Items with stable indices, which are used again after an item is removed, and rings of such
//! items.
//!
//! A ring is a set of items that name their neighbours. Joining two rings and leaving a ring cost
//! the same however large the rings are, and a ring takes no memory of its own. The owner of a ring
//! keeps the index of one of its items.

use serde::{Deserialize, Serialize};

/// The neighbours of an item in one of its rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Links {
    pub(super) before: u32,
    pub(super) after: u32,
}

/// An item that may be in a ring of the kind `Ring`.
pub(super) trait Linked<Ring> {
    /// Its neighbours.
    fn links(&self) -> Links;
    /// Its neighbours, to be changed.
    fn links_mut(&mut self) -> &mut Links;
}

/// A list of items with stable indices, which are used again after an item is removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Slab<T> {
    pub(super) items: Vec<Option<T>>,
    pub(super) free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = Some(item);
            return id;
        }
        self.items.push(Some(item));
        u32::try_from(self.items.len() - 1).expect("fewer than 2^32 items")
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let item = self.items[id as usize].take();
        if item.is_some() {
            self.free.push(id);
        }
        item
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.items.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.items.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// One above the largest index in use.
    pub(super) fn end(&self) -> usize {
        self.items.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<Option<T>>() + self.free.capacity() * size_of::<u32>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> + '_ {
        (0u32..)
            .zip(&self.items)
            .filter_map(|(id, item)| item.as_ref().map(|item| (id, item)))
    }

    /// All items with their indices.
    pub(super) fn into_items(self) -> impl Iterator<Item = (u32, T)> {
        (0u32..)
            .zip(self.items)
            .filter_map(|(id, item)| item.map(|item| (id, item)))
    }

    /// Adds an item, which is in no such ring, to the ring of `head`. Returns the ring's new head:
    /// the item.
    pub(super) fn enter<Ring>(&mut self, head: Option<u32>, id: u32) -> u32
    where
        T: Linked<Ring>,
    {
        *Linked::<Ring>::links_mut(&mut self[id]) = Links {
            before: id,
            after: id,
        };
        self.join::<Ring>(head, Some(id)).unwrap_or(id)
    }

    /// Joins two different rings into one. Returns the head of the joined ring.
    pub(super) fn join<Ring>(&mut self, a: Option<u32>, b: Option<u32>) -> Option<u32>
    where
        T: Linked<Ring>,
    {
        let (Some(a), Some(b)) = (a, b) else {
            return a.or(b);
        };
        let (after_a, after_b) = (self[a].links().after, self[b].links().after);
        self[a].links_mut().after = after_b;
        self[after_b].links_mut().before = a;
        self[b].links_mut().after = after_a;
        self[after_a].links_mut().before = b;
        Some(b)
    }

    /// Takes an item out of its ring. Returns an item that stays in the ring, if there is one.
    pub(super) fn leave<Ring>(&mut self, id: u32) -> Option<u32>
    where
        T: Linked<Ring>,
    {
        let Links { before, after } = self[id].links();
        self[before].links_mut().after = after;
        self[after].links_mut().before = before;
        (after != id).then_some(after)
    }

    /// The indices of a ring.
    pub(super) fn ring<Ring>(&self, head: Option<u32>) -> impl Iterator<Item = u32> + '_
    where
        T: Linked<Ring>,
    {
        let mut next = head;
        std::iter::from_fn(move || {
            let id = next?;
            let after = self[id].links().after;
            next = (Some(after) != head).then_some(after);
            Some(id)
        })
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, id: u32) -> &T {
        self.get(id).expect("a live item")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.get_mut(id).expect("a live item")
    }
}

#[cfg(test)]
mod tests {
    use super::{Linked, Links, Slab};

    #[derive(Default)]
    struct Item(Links);

    impl Linked<()> for Item {
        fn links(&self) -> Links {
            self.0
        }
        fn links_mut(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    fn sorted(slab: &Slab<Item>, head: Option<u32>) -> Vec<u32> {
        let mut ids: Vec<u32> = slab.ring(head).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn rings_join_and_are_left_at_any_item() {
        let mut slab = Slab::<Item>::default();
        let ids: Vec<u32> = (0..6).map(|_| slab.insert(Item::default())).collect();
        let ring = |slab: &mut Slab<Item>, ids: &[u32]| {
            ids.iter()
                .fold(None, |head, &id| Some(slab.enter(head, id)))
        };
        let (a, b) = (ring(&mut slab, &ids[..4]), ring(&mut slab, &ids[4..]));
        let both = slab.join(a, b);
        assert_eq!(sorted(&slab, both), ids);
        let rest = slab.leave(both.expect("a ring"));
        assert_eq!(sorted(&slab, rest).len(), 5);
        let last = (0..4).fold(rest, |head, _| slab.leave(head.expect("a ring")));
        assert_eq!(sorted(&slab, last).len(), 1);
        assert_eq!(slab.leave(last.expect("a ring")), None);
    }
}
