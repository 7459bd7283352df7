//! Presence bits: for each group, tier and set of 64 ranks (and a few further distinctions) one
//! word per node.
//!
//! A plane is made when its first bit is set. It consists of pages, and a page exists only while
//! some bit in it is set, so groups, tiers and ranks that hold nothing cost nothing. The memory of
//! each page is charged to one rank that has a bit in it.

use hashbrown::HashMap;

use super::nodes::NodeId;
use crate::fleet::tier::{Tier, TierSet};

/// Nodes per page: 4 KiB of words.
const PAGE: usize = 512;
/// The number of pages without a bit that are kept to be used again: a megabyte.
const SPARE: usize = 256;

/// What the bits of a plane mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::fleet) struct PlaneKey {
    /// The group, by its index on the wire.
    pub group: u16,
    /// Whether the copies are smaller than the group's block.
    pub partial: bool,
    /// The tier that the copies are on.
    pub tier: Tier,
    /// Whether no event has mentioned the copies since a clear. Such copies count for upper bounds
    /// only.
    pub doubted: bool,
    /// The set of 64 ranks: bit `b` of a word is the rank in column `64 * word + b`.
    pub word: u16,
}

/// The bit of one rank, which is the same in every plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) struct Column {
    /// The word of the planes that has the bit.
    pub word: u16,
    /// The bit within that word.
    pub bit: u64,
}

impl Column {
    /// The column of a rank, by its number in the model.
    #[must_use]
    pub(in crate::fleet) fn of(index: usize) -> Self {
        Self {
            word: u16::try_from(index / 64).expect("fewer than 2^22 ranks"),
            bit: 1 << (index % 64),
        }
    }
}

/// Index of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::fleet) struct PlaneId(u32);

/// Some words of a plane, at least one of which is not zero.
#[derive(Debug)]
struct PlanePage {
    words: [u64; PAGE],
    /// How many words are not zero.
    used: u16,
    /// The bit of the rank that the page is charged to, and the number of words in which it is set.
    payer: u64,
    paid: u16,
}

impl PlanePage {
    const EMPTY: Self = Self {
        words: [0; PAGE],
        used: 0,
        payer: 0,
        paid: 0,
    };

    /// Sets bits of a word. Returns those of them that were clear.
    fn set(&mut self, offset: usize, bits: u64) -> u64 {
        let before = self.words[offset];
        self.words[offset] = before | bits;
        self.used += u16::from(before == 0);
        self.paid += u16::from(!before & bits & self.payer != 0);
        !before & bits
    }

    /// Clears bits of a word. Returns those of them that were set.
    fn clear(&mut self, offset: usize, bits: u64) -> u64 {
        let before = self.words[offset];
        let after = before & !bits;
        self.words[offset] = after;
        self.used -= u16::from(before != 0 && after == 0);
        self.paid -= u16::from(before & bits & self.payer != 0);
        before & bits
    }

    /// Clears a bit in all words.
    fn clear_all(&mut self, bit: u64) {
        let mut used = 0;
        for word in &mut self.words {
            *word &= !bit;
            used += u16::from(*word != 0);
        }
        self.used = used;
        self.paid *= u16::from(bit != self.payer);
    }

    /// Charges the page to a rank that has a bit in it.
    fn find_payer(&mut self) {
        let word = self.words.iter().find(|word| **word != 0);
        self.payer = word.map_or(0, |word| word & word.wrapping_neg());
        let has_paid = self.words.iter().filter(|word| **word & self.payer != 0);
        self.paid = u16::try_from(has_paid.count()).unwrap_or(u16::MAX);
    }
}

/// The pages of one plane.
#[derive(Debug)]
struct Plane {
    word: u16,
    pages: Vec<Option<Box<PlanePage>>>,
    /// In how many words each bit is set.
    held: [u32; 64],
}

impl Plane {
    fn count(&mut self, mut bits: u64, change: impl Fn(u32) -> u32) {
        while bits != 0 {
            let held = &mut self.held[bits.trailing_zeros() as usize];
            *held = change(*held);
            bits &= bits - 1;
        }
    }
}

/// The spare pages, and how many pages are charged to each rank.
#[derive(Debug, Default)]
struct Ledger {
    spare: Vec<Box<PlanePage>>,
    num_pages: usize,
    /// The number of pages that are charged to each column.
    paid_by: Vec<u32>,
}

impl Ledger {
    fn pays(&mut self, word: u16, bit: u64) -> &mut u32 {
        let column = usize::from(word) * 64 + bit.trailing_zeros() as usize;
        if self.paid_by.len() <= column {
            self.paid_by.resize(column + 1, 0);
        }
        &mut self.paid_by[column]
    }

    /// A page for a word of which these bits are about to be set.
    fn page(&mut self, word: u16, bits: u64) -> Box<PlanePage> {
        let bit = bits & bits.wrapping_neg();
        self.num_pages += 1;
        *self.pays(word, bit) += 1;
        let mut page = (self.spare.pop()).unwrap_or_else(|| Box::new(PlanePage::EMPTY));
        page.payer = bit;
        page
    }

    /// Handles a page of which bits were cleared: it may become spare, or be charged to another
    /// rank.
    fn settle(&mut self, word: u16, slot: &mut Option<Box<PlanePage>>) {
        let Some(page) = slot.as_mut().filter(|page| page.paid == 0) else {
            return;
        };
        *self.pays(word, page.payer) -= 1;
        if page.used > 0 {
            page.find_payer();
            *self.pays(word, page.payer) += 1;
            return;
        }
        self.num_pages -= 1;
        self.spare
            .extend(slot.take().filter(|_| self.spare.len() < SPARE));
    }
}

/// All presence bits of one model.
#[derive(Debug, Default)]
pub(in crate::fleet) struct Planes {
    ids: HashMap<PlaneKey, PlaneId>,
    /// The tiers of all planes.
    pub(in crate::fleet) tiers: TierSet,
    all: Vec<Plane>,
    ledger: Ledger,
}

const fn address(node: NodeId) -> (usize, usize) {
    (node.0 as usize / PAGE, node.0 as usize % PAGE)
}

/// Boundaries of a request whose nodes are one after the other in one page, where `gather` reads them at
/// once.
#[derive(Debug, Clone, Copy)]
pub(in crate::fleet) struct NodeRun {
    /// The position of the first boundary.
    at: usize,
    page: usize,
    /// The first word within the page.
    offset: usize,
    len: usize,
}

impl NodeRun {
    /// The runs of a request's nodes; `None` stands for a boundary without a node.
    pub(in crate::fleet) fn of(nodes: &[Option<NodeId>]) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            let Some(node) = node else {
                continue;
            };
            let (page, offset) = address(*node);
            match runs.last_mut() {
                Some(run) if run.continues_at(at, page, offset) => run.len += 1,
                _ => runs.push(Self {
                    at,
                    page,
                    offset,
                    len: 1,
                }),
            }
        }
        runs
    }

    fn continues_at(self, at: usize, page: usize, offset: usize) -> bool {
        (at, page, offset) == (self.at + self.len, self.page, self.offset + self.len)
    }
}

impl Planes {
    /// The plane of a key, if a bit has ever been set in it.
    #[must_use]
    pub(in crate::fleet) fn find(&self, key: PlaneKey) -> Option<PlaneId> {
        self.ids.get(&key).copied()
    }

    /// The plane of a key, made if there is none.
    pub(in crate::fleet) fn find_or_create(&mut self, key: PlaneKey) -> PlaneId {
        self.tiers.insert(key.tier);
        *self.ids.entry(key).or_insert_with(|| {
            self.all.push(Plane {
                word: key.word,
                pages: Vec::new(),
                held: [0; 64],
            });
            PlaneId(u32::try_from(self.all.len() - 1).expect("fewer than 2^32 planes"))
        })
    }

    /// How many planes exist.
    #[must_use]
    pub(in crate::fleet) fn len(&self) -> usize {
        self.all.len()
    }

    /// The word of a node.
    #[must_use]
    pub(in crate::fleet) fn word(&self, plane: PlaneId, node: NodeId) -> u64 {
        let (page, offset) = address(node);
        match self.all[plane.0 as usize].pages.get(page) {
            Some(Some(page)) => page.words[offset],
            Some(None) | None => 0,
        }
    }

    /// Sets bits of a node's word. Returns true if all of them were clear.
    pub(in crate::fleet) fn set(&mut self, plane: PlaneId, node: NodeId, bits: u64) -> bool {
        let (page, offset) = address(node);
        let plane = &mut self.all[plane.0 as usize];
        if plane.pages.len() <= page {
            plane.pages.resize_with(page + 1, || None);
        }
        let (ledger, word) = (&mut self.ledger, plane.word);
        let page = plane.pages[page].get_or_insert_with(|| ledger.page(word, bits));
        let set = page.set(offset, bits);
        plane.count(set, |held| held + 1);
        set == bits
    }

    /// Clears bits of a node's word.
    pub(in crate::fleet) fn clear(&mut self, plane: PlaneId, node: NodeId, bits: u64) {
        let (page, offset) = address(node);
        let plane = &mut self.all[plane.0 as usize];
        if let Some(slot @ Some(_)) = plane.pages.get_mut(page) {
            let cleared = slot.as_mut().map_or(0, |page| page.clear(offset, bits));
            self.ledger.settle(plane.word, slot);
            plane.count(cleared, |held| held - 1);
        }
    }

    /// In how many words of a plane a rank's bit is set: its blocks of the plane's group and tier.
    #[must_use]
    pub(in crate::fleet) fn held(&self, key: PlaneKey, bit: u64) -> usize {
        self.find(key).map_or(0, |plane| {
            self.all[plane.0 as usize].held[bit.trailing_zeros() as usize] as usize
        })
    }

    /// The number of pages that clearing the whole plane looks at.
    #[must_use]
    pub(in crate::fleet) fn num_pages(&self, plane: PlaneId) -> usize {
        self.all[plane.0 as usize].pages.len()
    }

    /// Clears a rank's bit in all words of a plane.
    pub(in crate::fleet) fn clear_all(&mut self, plane: PlaneId, bit: u64) {
        let Plane { word, pages, held } = &mut self.all[plane.0 as usize];
        held[bit.trailing_zeros() as usize] = 0;
        for slot in pages.iter_mut().filter(|slot| slot.is_some()) {
            if let Some(page) = slot {
                page.clear_all(bit);
            }
            self.ledger.settle(*word, slot);
        }
    }

    /// Moves the words of a node in all planes to another node, which has none.
    pub(in crate::fleet) fn move_words(&mut self, from: NodeId, to: NodeId) {
        for plane in 0..self.all.len() {
            let plane = PlaneId(u32::try_from(plane).expect("fewer than 2^32 planes"));
            let word = self.word(plane, from);
            if word != 0 {
                self.clear(plane, from, word);
                self.set(plane, to, word);
            }
        }
    }

    /// Cuts off the words of all nodes from this one on, which are all zero.
    pub(in crate::fleet) fn end_at(&mut self, end: NodeId) {
        for Plane { pages, .. } in &mut self.all {
            pages.truncate((end.0 as usize).div_ceil(PAGE));
            pages.shrink_to_fit();
        }
    }

    /// ORs the words of a request's nodes into `out`, position by position.
    pub(in crate::fleet) fn gather(&self, plane: PlaneId, runs: &[NodeRun], out: &mut [u64]) {
        self.each_run(plane, runs, out, |out, words| {
            for (out, word) in out.iter_mut().zip(words) {
                *out |= word;
            }
        });
    }

    /// ORs some bits of the words of a request's nodes into other bits of `out`: each bit goes to its
    /// lane.
    pub(in crate::fleet) fn gather_bits(
        &self,
        plane: PlaneId,
        runs: &[NodeRun],
        bits: &(impl Iterator<Item = (u32, u32)> + Clone),
        out: &mut [u64],
    ) {
        self.each_run(plane, runs, out, |out, words| {
            for (bit, lane) in bits.clone() {
                for (out, word) in out.iter_mut().zip(words) {
                    *out |= (word >> bit & 1) << lane;
                }
            }
        });
    }

    /// Calls `read` with the part of `out` and the words of each run of which the plane has a page.
    fn each_run(
        &self,
        plane: PlaneId,
        runs: &[NodeRun],
        out: &mut [u64],
        read: impl Fn(&mut [u64], &[u64]),
    ) {
        let pages = &self.all[plane.0 as usize].pages;
        for run in runs {
            if let Some(Some(page)) = pages.get(run.page) {
                let words = &page.words[run.offset..run.offset + run.len];
                read(&mut out[run.at..run.at + run.len], words);
            }
        }
    }

    /// The bytes held.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        let tables: usize = self
            .all
            .iter()
            .map(|plane| plane.pages.capacity() * size_of::<Option<Box<PlanePage>>>())
            .sum();
        tables + (self.ledger.num_pages + self.ledger.spare.len()) * size_of::<PlanePage>()
    }

    /// The bytes of the pages that are charged to a column.
    #[must_use]
    pub(in crate::fleet) fn paid_by(&self, column: usize) -> usize {
        let pages = self.ledger.paid_by.get(column).copied().unwrap_or(0);
        pages as usize * size_of::<PlanePage>()
    }

    /// Every set bit as (plane, node, word), for integrity checks.
    pub(in crate::fleet) fn set_words(&self) -> impl Iterator<Item = (PlaneKey, NodeId, u64)> + '_ {
        self.ids.iter().flat_map(move |(&key, &plane)| {
            self.all[plane.0 as usize]
                .pages
                .iter()
                .enumerate()
                .flat_map(move |(at, page)| {
                    page.iter().flat_map(move |page| {
                        page.words.iter().enumerate().filter(|(_, w)| **w != 0).map(
                            move |(i, &w)| {
                                let node = u32::try_from(at * PAGE + i).unwrap_or(u32::MAX);
                                (key, NodeId(node), w)
                            },
                        )
                    })
                })
        })
    }

    /// Panics unless every page has a bit, and is charged to a rank that has one.
    pub(in crate::fleet) fn check_integrity(&self) {
        let mut paid_by = vec![0; self.ledger.paid_by.len()];
        for plane in &self.all {
            let mut held = [0; 64];
            for page in plane.pages.iter().flatten() {
                for (bit, count) in held.iter_mut().enumerate() {
                    let set = page.words.iter().filter(|word| **word >> bit & 1 != 0);
                    *count += u32::try_from(set.count()).unwrap_or(u32::MAX);
                }
                let used = page.words.iter().filter(|word| **word != 0).count();
                assert_eq!(used, usize::from(page.used), "words of a page");
                let paid = page.words.iter().filter(|word| **word & page.payer != 0);
                assert_eq!(paid.count(), usize::from(page.paid), "who pays for a page");
                assert!(page.paid > 0, "nobody pays for a page");
                let bit = page.payer.trailing_zeros() as usize;
                paid_by[usize::from(plane.word) * 64 + bit] += 1;
            }
            assert_eq!(held, plane.held, "words in which a bit is set");
        }
        assert_eq!(paid_by, self.ledger.paid_by, "pages by payer");
        let num_pages: u32 = paid_by.iter().sum();
        assert_eq!(num_pages as usize, self.ledger.num_pages, "pages");
        let mut spare = self.ledger.spare.iter();
        assert!(spare.all(|page| page.words == [0; PAGE] && page.used + page.paid == 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_with_its_page_and_where_the_next_node_is_another() {
        let page = u32::try_from(PAGE).expect("a small page");
        let (last, next) = (page - 1, page);
        let ids = [
            last - 1,
            last,
            next,
            u32::MAX,
            next + 1,
            next + 3,
            next + 2,
            3,
        ];
        let nodes = ids.map(|id| (id != u32::MAX).then_some(NodeId(id)));
        let runs = NodeRun::of(&nodes);
        let runs = runs.iter().map(|r| (r.at, r.page, r.offset, r.len));
        let expected = [
            (0, 0, PAGE - 2, 2),
            (2, 1, 0, 1),
            (4, 1, 1, 1),
            (5, 1, 3, 1),
            (6, 1, 2, 1),
            (7, 0, 3, 1),
        ];
        assert_eq!(runs.collect::<Vec<_>>(), expected);
    }
}
