//! A pod to bytes and back, so that a restarted index knows it at once.
//!
//! Invariant: an index that loads what another one saved answers every question about the pod as that one did,
//! and goes on doing so if both take in the same. What is not the pod's is not in it: what was seen
//! before, promises, and when a request last matched a block.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::limits::NAMED_BY_PAYLOADS;
use super::registration::{new_rank, unknown_pod};
use super::{Index, Options};
use crate::error::{Error, Result};
use crate::fleet::pod::PodSpec;
use crate::fleet::presence::SharedPresence;
use crate::fleet::rank::saved::{DetachedRank, Records, SavedRank};
use crate::fleet::snapshot::bytes::Reader;
use crate::fleet::snapshot::envelope::{Owner, Unfit, begin, open, seal, unfit};
use crate::fleet::state::State;
use crate::secret::Secret;
use crate::wire::MAX_RANKS;

/// The part of a snapshot that is text; the tables of the ranks follow it, in their order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPod {
    note: String,
    feeds: BTreeMap<u32, (State, String)>,
    ranks: Vec<SavedRank>,
}

/// A pod that is being saved. Until it is finished, questions alone may be asked in between.
#[derive(Debug)]
pub struct Saving {
    pod: String,
    note: String,
    columns: VecDeque<usize>,
    records: Records,
    ranks: Vec<SavedRank>,
}

/// A pod that was saved and is not bytes yet: its text and its seal take as long as the rest, and need no
/// index.
#[derive(Debug)]
pub struct Unsealed {
    pod: SavedPod,
    secret: Secret,
    head: Vec<u8>,
    tables: Vec<u8>,
}

impl Unsealed {
    /// The snapshot.
    ///
    /// # Errors
    /// `InvalidValue` if its text cannot be written.
    pub fn seal(self) -> Result<Vec<u8>> {
        let Self {
            pod,
            secret,
            head: mut bytes,
            tables,
        } = self;
        let text = serde_json::to_vec(&pod)
            .map_err(|error| Error::InvalidValue(format!("a snapshot: {error}")))?;
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text);
        bytes.extend(tables);
        Ok(seal(&secret, bytes))
    }
}

/// A pod as bytes. `note` is the caller's and comes back with it: what the feed of the pod knows of
/// sequence numbers. Costs one pass over what the pod holds.
///
/// # Errors
/// `Unknown` for a pod that is not registered.
pub fn save(index: &mut Index, name: &str, note: &str) -> Result<Unsealed> {
    let mut saving = Saving::new(index, name, note)?;
    while !saving.advance(index, usize::MAX) {}
    saving.finish(index)
}

impl Saving {
    /// Begins to save a pod, as `save` does.
    ///
    /// # Errors
    /// `Unknown` for a pod that is not registered.
    pub fn new(index: &Index, name: &str, note: &str) -> Result<Self> {
        let pod = index.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        Ok(Self {
            pod: name.to_owned(),
            note: note.to_owned(),
            columns: pod.columns.values().copied().collect(),
            records: Records::default(),
            ranks: Vec::new(),
        })
    }

    /// Writes about so many more hashes. Returns whether all are written.
    pub fn advance(&mut self, index: &mut Index, most: usize) -> bool {
        let pod = index.pods.get(&self.pod);
        let model = pod.and_then(|pod| index.models.get_mut(&pod.spec.model));
        let Some((model, &column)) = model.zip(self.columns.front()) else {
            return true;
        };
        let records = &mut self.records;
        let saved = model.with_rank(column, |rank, shared| {
            SavedRank::of(rank, shared, records, most)
        });
        if let Some(saved) = saved.flatten() {
            self.ranks.push(saved);
            self.columns.pop_front();
        }
        self.columns.is_empty()
    }

    /// The pod as bytes, but for the seal.
    ///
    /// # Errors
    /// `Unknown` for a pod that is not registered any more.
    pub fn finish(self, index: &Index) -> Result<Unsealed> {
        let name = self.pod.as_str();
        let pod = index.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        let owner = Owner {
            pod: name,
            registered: &registered(&index.options, &pod.spec),
        };
        let secret = index.options.secret;
        Ok(Unsealed {
            head: begin(&secret, owner),
            pod: SavedPod {
                note: self.note,
                feeds: pod.feeds.clone(),
                ranks: self.ranks,
            },
            secret,
            tables: self.records.into_bytes(),
        })
    }
}

/// What the snapshot of a pod must fit. It is read without an index, so nobody waits for that.
#[derive(Debug)]
pub struct Unread {
    pod: String,
    spec: PodSpec,
    options: Options,
    /// The number of ranks that there is room for.
    room: usize,
}

/// A pod that was read.
#[derive(Debug)]
pub struct Unplaced {
    pod: String,
    note: String,
    feeds: BTreeMap<u32, (State, String)>,
    ranks: Vec<DetachedRank>,
}

/// Replaces everything that is known of a pod by what was saved of it. Returns the note.
///
/// # Errors
/// As `Unread::new` and `Unread::read`. Then nothing has changed.
pub fn load(index: &mut Index, name: &str, bytes: &[u8]) -> Result<String> {
    Ok(Unread::new(index, name)?.read(bytes)?.place(index))
}

impl Unread {
    /// What a snapshot of a pod must fit.
    ///
    /// # Errors
    /// `Unknown` for a pod that is not registered.
    pub fn new(index: &Index, name: &str) -> Result<Self> {
        let pod = index.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        let others = index.num_ranks() - pod.columns.len();
        Ok(Self {
            pod: name.to_owned(),
            spec: pod.spec.clone(),
            options: index.options,
            room: index.options.max_ranks.saturating_sub(others),
        })
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// `Snapshot` for bytes that are not of this pod as it is registered, of this secret or of this version,
    /// and for those that are not whole.
    pub fn read(self, bytes: &[u8]) -> Result<Unplaced> {
        let (name, secret) = (self.pod.as_str(), &self.options.secret);
        let owner = Owner {
            pod: name,
            registered: &registered(&self.options, &self.spec),
        };
        let body = open(secret, owner, bytes)?;
        let impossible = |what: &str| unfit(name, Unfit::Impossible, what);
        let mut reader = Reader(body);
        let length = reader.u64().and_then(|length| usize::try_from(length).ok());
        let text = length.and_then(|length| reader.bytes(length));
        let text = text.ok_or_else(|| impossible("its text is longer than its body"))?;
        let saved: SavedPod = serde_json::from_slice(text)
            .map_err(|error| impossible(&format!("its text cannot be read: {error}")))?;
        let SavedPod { note, feeds, ranks } = saved;
        self.check_ranks(&ranks).map_err(impossible)?;
        let restored: Option<Vec<DetachedRank>> = ranks
            .into_iter()
            .map(|saved| {
                let fresh = new_rank(&self.options, &self.spec, saved.dp_rank).ok()?;
                saved.restored(fresh, secret, &mut reader)
            })
            .collect();
        let restored = restored.filter(|_| reader.0.is_empty());
        let ranks = restored.ok_or_else(|| impossible("what it says of a rank cannot be"))?;
        Ok(Unplaced {
            note,
            feeds,
            ranks,
            pod: self.pod,
        })
    }

    fn check_ranks(&self, ranks: &[SavedRank]) -> std::result::Result<(), &'static str> {
        let numbers = ranks.iter().map(|rank| rank.dp_rank);
        let is_in_order = numbers.clone().is_sorted_by(|a, b| a < b);
        let own = self.spec.dp_size;
        let has_own = numbers.clone().take(own as usize).eq(0..own);
        let named = ranks.len().saturating_sub(own as usize);
        if !(is_in_order && has_own && numbers.max().is_some_and(|last| last < MAX_RANKS)) {
            return Err("its ranks are not those of the pod");
        }
        if named > NAMED_BY_PAYLOADS || (named > 0 && ranks.len() > self.room) {
            return Err("payloads named more ranks than there is room for; raise max_ranks");
        }
        Ok(())
    }
}

/// What the content of a snapshot depends on besides the secret.
fn registered(options: &Options, spec: &PodSpec) -> String {
    format!(
        "{spec:?} {} {} {} {}",
        options.use_hash_functions, options.counts_copies, options.all_groups, options.narrows
    )
}

impl Unplaced {
    /// Replaces everything that is known of the pod, to which nothing has happened since `Unread::new`.
    /// Returns the note.
    pub fn place(self, index: &mut Index) -> String {
        replace_ranks(index, &self.pod, self.feeds, self.ranks);
        self.note
    }
}

fn replace_ranks(
    index: &mut Index,
    name: &str,
    feeds: BTreeMap<u32, (State, String)>,
    ranks: Vec<DetachedRank>,
) {
    let Some(pod) = index.pods.get_mut(name) else {
        return;
    };
    let Some(model) = index.models.get_mut(&pod.spec.model) else {
        return;
    };
    for column in std::mem::take(&mut pod.columns).into_values() {
        model.remove(column);
    }
    pod.feeds = feeds;
    for rank in ranks {
        let (index, column) = model.free_column();
        let mut shared = SharedPresence {
            nodes: &mut model.nodes,
            planes: &mut model.planes,
        };
        let rank = rank.attach(column, &mut shared);
        pod.columns.insert(rank.dp_rank, index);
        model.ranks[index] = Some(rank);
        model.invalidate(index);
    }
}
