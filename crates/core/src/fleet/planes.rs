//! Presence bits: for each (group, tier, …, 64 ranks) one word per node.
//!
//! A plane is made when its first bit is set, in pages, so that groups, tiers and ranks that hold
//! nothing cost nothing.

use hashbrown::HashMap;

use super::nodes::NodeId;
use super::tier::Tier;

/// Nodes per page: 4 KiB of words.
const PAGE: usize = 512;

/// What a plane's bits say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PlaneKey {
    /// The group, by its index on the wire.
    pub group: u16,
    /// Entries smaller than the group's block.
    pub partial: bool,
    /// Where the copies are.
    pub tier: Tier,
    /// Copies of which no event has spoken since a clear: they count for upper bounds only.
    pub doubted: bool,
    /// Which 64 ranks: bit `b` of a word is the rank in column `64 * word + b`.
    pub word: u16,
}

/// Index of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PlaneId(u32);

type Page = Option<Box<[u64; PAGE]>>;

/// All presence bits of one model.
#[derive(Debug, Default)]
pub(super) struct Planes {
    ids: HashMap<PlaneKey, PlaneId>,
    pages: Vec<Vec<Page>>,
    num_pages: usize,
}

const fn address(node: NodeId) -> (usize, usize) {
    (node.0 as usize / PAGE, node.0 as usize % PAGE)
}

impl Planes {
    /// The plane of a key, if anybody ever set a bit in it.
    #[must_use]
    pub(super) fn find(&self, key: PlaneKey) -> Option<PlaneId> {
        self.ids.get(&key).copied()
    }

    /// The plane of a key, made if there is none.
    pub(super) fn find_or_create(&mut self, key: PlaneKey) -> PlaneId {
        *self.ids.entry(key).or_insert_with(|| {
            self.pages.push(Vec::new());
            PlaneId(u32::try_from(self.pages.len() - 1).expect("fewer than 2^32 planes"))
        })
    }

    /// The planes that exist.
    pub(super) fn keys(&self) -> impl Iterator<Item = PlaneKey> + '_ {
        self.ids.keys().copied()
    }

    /// The word of a node.
    #[must_use]
    pub(super) fn word(&self, plane: PlaneId, node: NodeId) -> u64 {
        let (page, offset) = address(node);
        match self.pages[plane.0 as usize].get(page) {
            Some(Some(words)) => words[offset],
            Some(None) | None => 0,
        }
    }

    /// Sets bits of a node's word; true when all of them were clear before.
    pub(super) fn set(&mut self, plane: PlaneId, node: NodeId, bits: u64) -> bool {
        let (page, offset) = address(node);
        let pages = &mut self.pages[plane.0 as usize];
        if pages.len() <= page {
            pages.resize_with(page + 1, || None);
        }
        let num_pages = &mut self.num_pages;
        let words = pages[page].get_or_insert_with(|| {
            *num_pages += 1;
            Box::new([0; PAGE])
        });
        let was_clear = words[offset] & bits == 0;
        words[offset] |= bits;
        was_clear
    }

    /// Clears bits of a node's word.
    pub(super) fn clear(&mut self, plane: PlaneId, node: NodeId, bits: u64) {
        let (page, offset) = address(node);
        if let Some(Some(words)) = self.pages[plane.0 as usize].get_mut(page) {
            words[offset] &= !bits;
        }
    }

    /// ORs the words of `nodes` into `out`, position by position (`None` = no such boundary).
    pub(super) fn gather(&self, plane: PlaneId, nodes: &[Option<NodeId>], out: &mut [u64]) {
        let pages = &self.pages[plane.0 as usize];
        for (word, node) in out.iter_mut().zip(nodes) {
            if let Some(node) = node {
                let (page, offset) = address(*node);
                if let Some(Some(words)) = pages.get(page) {
                    *word |= words[offset];
                }
            }
        }
    }

    /// Bytes held.
    #[must_use]
    pub(super) fn bytes(&self) -> usize {
        let tables: usize = self
            .pages
            .iter()
            .map(|p| p.capacity() * size_of::<Page>())
            .sum();
        tables + self.num_pages * PAGE * size_of::<u64>()
    }

    /// Every set bit as (plane, node, word), for integrity checks.
    pub(super) fn set_words(&self) -> impl Iterator<Item = (PlaneKey, NodeId, u64)> + '_ {
        self.ids.iter().flat_map(move |(&key, &plane)| {
            self.pages[plane.0 as usize]
                .iter()
                .enumerate()
                .flat_map(move |(page, words)| {
                    words.iter().flat_map(move |words| {
                        words
                            .iter()
                            .enumerate()
                            .filter(|(_, w)| **w != 0)
                            .map(move |(i, &w)| {
                                let node = u32::try_from(page * PAGE + i).unwrap_or(u32::MAX);
                                (key, NodeId(node), w)
                            })
                    })
                })
        })
    }
}
