//! The prefixes of promised prompts, as paths whose common beginnings are stored once.
//!
//! ```text
//! a b c d e f        promised to rank 0            [a b c] -+- [d e f]     0
//! a b c x            promised to rank 1              0, 1   '- [x]         1
//! ```
//! Two prompts that have one key in common have all keys before it in common, so how far a prompt
//! follows a path is found by bisection. A promise takes a step for each path, not for each key.
//! A path is cut where another prompt leaves it and where states will be kept. It stays cut until
//! nobody is promised it: there are never more paths than keys.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::fleet::presence::lanes::Lanes;
use crate::prefix::PrefixKey;

/// Index of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) struct PathId(u32);

/// How often something counts for a column.
type PerColumn = SmallVec<[(usize, u32); 2]>;

#[derive(Debug, Default)]
struct Path {
    /// The keys of its boundaries; none if the path is free.
    keys: Box<[PrefixKey]>,
    /// The number of keys from the start of the prompts to its end.
    end: u32,
    before: Option<PathId>,
    /// The ranks that it was promised to, and how often.
    promised: PerColumn,
    /// Those of them that will keep states at its end.
    kept: PerColumn,
}

/// All paths of one unit of tokens.
#[derive(Debug, Default)]
pub(super) struct Paths {
    all: Vec<Path>,
    free: Vec<PathId>,
    by_first_key: HashMap<PrefixKey, PathId>,
    num_keys: usize,
    /// How many ranks all paths are promised to, each counted with each of its paths.
    num_promised: usize,
}

/// What is promised along a prompt to some ranks of one word.
#[derive(Debug)]
pub(in crate::fleet) struct Coming {
    /// For each key, the ranks that will hold all up to there.
    pub(in crate::fleet) dense: Vec<u64>,
    /// For each key, the ranks that will keep states there.
    pub(in crate::fleet) kept: Vec<u64>,
}

impl Paths {
    /// Adds a promise of these keys, at least one, to a column that will keep states at some of
    /// them: `kept` are numbers of keys, ascending. Returns where the promise ends.
    pub(super) fn add(&mut self, keys: &[PrefixKey], kept: &[u32], column: usize) -> PathId {
        let (mut at, mut before, end) = (0, None, keys.len());
        loop {
            let next = kept.iter().map(|&end| end as usize).find(|&end| end > at);
            let most = next.map_or(end, |next| next.min(end)) - at;
            let id = self.follow(&keys[at..], most, before);
            let path = &mut self.all[id.0 as usize];
            let num_before = path.promised.len();
            count(&mut path.promised, column);
            self.num_promised += path.promised.len() - num_before;
            if kept.contains(&path.end) {
                count(&mut path.kept, column);
            }
            (at, before) = (path.end as usize, Some(id));
            if at >= end {
                return id;
            }
        }
    }

    /// The path that begins with the first of these keys and has none but these, at most so many: it
    /// is cut or made to be so.
    fn follow(&mut self, keys: &[PrefixKey], most: usize, before: Option<PathId>) -> PathId {
        let Some(&id) = self.by_first_key.get(&keys[0]) else {
            return self.make(keys[..most].into(), before);
        };
        let path = &self.all[id.0 as usize];
        let common = shared(&path.keys, keys).min(most);
        if common == path.keys.len() {
            return id;
        }
        self.cut(id, common)
    }

    fn make(&mut self, keys: Box<[PrefixKey]>, before: Option<PathId>) -> PathId {
        let start = before.map_or(0, |id| self.all[id.0 as usize].end);
        let end = start + u32::try_from(keys.len()).unwrap_or(u32::MAX);
        self.num_keys += keys.len();
        let path = Path {
            keys,
            end,
            before,
            ..Path::default()
        };
        self.put(path)
    }

    fn put(&mut self, path: Path) -> PathId {
        let first = path.keys[0];
        let id = if let Some(id) = self.free.pop() {
            self.all[id.0 as usize] = path;
            id
        } else {
            self.all.push(path);
            PathId(u32::try_from(self.all.len() - 1).expect("fewer than 2^32 paths"))
        };
        self.by_first_key.insert(first, id);
        id
    }

    /// Cuts a path after so many keys, and returns the first part. The second one keeps the number,
    /// so whoever ends there or comes after it finds it.
    fn cut(&mut self, id: PathId, after: usize) -> PathId {
        let path = &mut self.all[id.0 as usize];
        let (first_keys, rest) = path.keys.split_at(after);
        let (first_keys, rest) = (first_keys.into(), rest.into());
        path.keys = rest;
        let first_part = Path {
            keys: first_keys,
            end: path.end - u32::try_from(path.keys.len()).unwrap_or(u32::MAX),
            before: path.before,
            promised: path.promised.clone(),
            kept: PerColumn::new(),
        };
        let first = path.keys[0];
        self.num_promised += path.promised.len();
        let first_part = self.put(first_part);
        self.all[id.0 as usize].before = Some(first_part);
        self.by_first_key.insert(first, id);
        first_part
    }

    /// Removes a promise that ends there.
    pub(super) fn remove(&mut self, end: PathId, kept: &[u32], column: usize) {
        let mut next = Some(end);
        while let Some(id) = next {
            let path = &mut self.all[id.0 as usize];
            next = path.before;
            if kept.contains(&path.end) {
                uncount(&mut path.kept, column);
            }
            let num_before = path.promised.len();
            uncount(&mut path.promised, column);
            self.num_promised -= num_before - path.promised.len();
            if path.promised.is_empty() {
                self.num_keys -= path.keys.len();
                self.by_first_key.remove(&path.keys[0]);
                *path = Path::default();
                self.free.push(id);
            }
        }
    }

    /// What is promised along these keys to some ranks; `None` if nothing is.
    pub(super) fn along(&self, keys: &[PrefixKey], lanes: &Lanes) -> Option<Coming> {
        let (mut dense, mut kept) = (Vec::new(), Vec::new());
        let mut any = 0;
        while let Some(id) = keys.get(dense.len()).and_then(|k| self.by_first_key.get(k)) {
            let path = &self.all[id.0 as usize];
            let common = shared(&path.keys, &keys[dense.len()..]);
            let bits = bits_of(&path.promised, lanes);
            any |= bits;
            dense.resize(dense.len() + common, bits);
            kept.resize(dense.len(), 0);
            if common < path.keys.len() {
                break;
            }
            if let Some(last) = kept.last_mut() {
                *last = bits_of(&path.kept, lanes);
            }
        }
        (any != 0).then_some(Coming { dense, kept })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_first_key.is_empty()
    }

    /// The bytes held, by capacity and estimate.
    pub(super) fn bytes(&self) -> usize {
        // At most as many ranks keep states at the end of a path as it is promised to.
        self.num_keys * size_of::<PrefixKey>()
            + 2 * self.num_promised * size_of::<(usize, u32)>()
            + self.all.capacity() * size_of::<Path>()
            + self.free.capacity() * size_of::<PathId>()
            + self.by_first_key.allocation_size()
    }

    /// Panics unless each path is found by its first key and follows the one before it.
    pub(super) fn check_integrity(&self) {
        let used = self.all.iter().filter(|path| !path.keys.is_empty());
        let num_keys: usize = used.clone().map(|path| path.keys.len()).sum();
        let num_promised: usize = used.clone().map(|path| path.promised.len()).sum();
        assert_eq!(num_promised, self.num_promised, "ranks of paths");
        assert_eq!(num_keys, self.num_keys, "keys");
        assert_eq!(used.count(), self.by_first_key.len(), "paths");
        assert_eq!(self.all.len() - self.free.len(), self.by_first_key.len());
        for (first, id) in &self.by_first_key {
            let path = &self.all[id.0 as usize];
            assert_eq!(path.keys[0], *first, "{id:?}");
            let start = path.before.map_or(0, |id| self.all[id.0 as usize].end);
            assert_eq!(
                path.end as usize,
                start as usize + path.keys.len(),
                "{id:?}"
            );
            assert!(!path.promised.is_empty(), "{id:?} is promised to nobody");
        }
    }

    /// Panics unless the counts are those of promises that end there, keep states there, and are of
    /// these columns.
    pub(super) fn check_counts(&self, ends: &[(PathId, &[u32], usize)]) {
        let mut promised: HashMap<(u32, usize), u32> = HashMap::new();
        let mut kept = promised.clone();
        for &(end, own, column) in ends {
            let mut next = Some(end);
            while let Some(id) = next {
                let path = &self.all[id.0 as usize];
                *promised.entry((id.0, column)).or_default() += 1;
                if own.contains(&path.end) {
                    *kept.entry((id.0, column)).or_default() += 1;
                }
                next = path.before;
            }
        }
        let numbered = (0u32..).zip(&self.all);
        let of = |counts: fn(&Path) -> &PerColumn| -> HashMap<(u32, usize), u32> {
            let all = numbered.clone();
            all.flat_map(|(id, path)| counts(path).iter().map(move |&(c, n)| ((id, c), n)))
                .collect()
        };
        assert_eq!(of(|path| &path.promised), promised, "who is promised what");
        assert_eq!(of(|path| &path.kept), kept, "who keeps states where");
    }
}

fn count(counts: &mut PerColumn, column: usize) {
    match counts.iter_mut().find(|(other, _)| *other == column) {
        Some((_, times)) => *times += 1,
        None => counts.push((column, 1)),
    }
}

fn uncount(counts: &mut PerColumn, column: usize) {
    if let Some(at) = counts.iter().position(|(other, _)| *other == column) {
        counts[at].1 -= 1;
        if counts[at].1 == 0 {
            counts.swap_remove(at);
        }
    }
}

/// The lanes of the columns.
fn bits_of(counts: &PerColumn, lanes: &Lanes) -> u64 {
    let own = counts.iter().filter_map(|&(column, _)| lanes.lane(column));
    own.fold(0, |bits, lane| bits | 1 << lane)
}

/// The number of keys with which both begin.
fn shared(path: &[PrefixKey], keys: &[PrefixKey]) -> usize {
    let most = path.len().min(keys.len());
    let (mut same, mut end) = (0, most);
    while same < end {
        let middle = same + (end - same) / 2;
        if path[middle] == keys[middle] {
            same = middle + 1;
        } else {
            end = middle;
        }
    }
    same
}
