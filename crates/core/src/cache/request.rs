//! One request: its tokens and hashes, and its block table in every group.

use std::ops::Range;

use super::config::HashFunction;
use super::value_cursor::ValueCursor;
use crate::blocks::{Author, BlockId, Extra, Source};
use crate::error::{Error, Result};
use crate::hash::{Chain, ChainSpec, Digest};

/// A shared block that holds the request's last tokens. It is copied before it is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedTail {
    pub position: u32,
    pub block: BlockId,
}

/// The state at a boundary inside a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateTail {
    pub block: BlockId,
    /// The number of tokens that the state covers.
    pub num_tokens: u32,
}

/// A state that a step saves before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SavedState {
    /// The number of tokens that the state covers.
    pub tokens: u32,
    /// The position of the block that the state is saved to.
    pub position: u32,
}

/// What a state group remembers of a running request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StateCursor {
    /// Whether the request has its own running state.
    pub allocated: bool,
    /// The position of the state that the step before wrote.
    pub last: Option<u32>,
    /// The positions before this one have been given back.
    pub retired: u32,
    /// The state at the prompt's last boundary, if that lies inside a block. It is findable until
    /// the step that continues it overwrites it.
    pub tail: Option<StateTail>,
    /// The state that the current step saves before its end.
    pub saved: Option<SavedState>,
}

/// The blocks of one request in one group.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub blocks: Vec<BlockId>,
    /// The number of leading blocks that need no registering; `None` until the first blocks were
    /// registered or adopted.
    pub num_cached: Option<u32>,
    /// Blocks before this position may be registered although `num_cached` does not count them: a
    /// rewind left them findable.
    pub rewound: u32,
    /// The positions before this one have the null block; see `num_null`.
    pub nulls: u32,
    pub shared_tail: Option<SharedTail>,
    pub state: StateCursor,
}

impl Table {
    /// A number of leading positions that have the null block. There may be more.
    pub(super) fn num_null(&self) -> u32 {
        self.nulls.max(self.state.retired)
    }
}

/// Whether a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// The request has not run yet.
    Waits,
    Runs,
    /// The request ran, and gave its blocks back.
    Preempted,
}

/// How tokens are cut for hashing.
#[derive(Debug, Clone, Copy)]
pub(super) struct HashBlocks {
    /// Tokens per hash.
    pub tokens: u32,
    /// Tokens after a block that its hash also covers.
    pub lookahead: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub id: u64,
    pub tokens: Vec<u32>,
    pub hashes: Vec<Digest>,
    pub extra: Extra,
    pub num_prompt_tokens: u32,
    pub num_computed_tokens: u32,
    /// The tokens that were computed before the last step, and after it.
    last_step: Range<u32>,
    /// The boundary where other requests are known to branch off; 0 if there is none.
    pub junction: u32,
    pub life: Life,
    /// What retention by value remembers of it.
    pub by_value: ValueCursor,
    tables: Vec<Table>,
    /// Decoding steps that end before this many computed tokens change no table.
    quiet_until: u32,
    chain: Option<Chain>,
}

impl Request {
    pub(super) fn new(id: u64, num_groups: usize, extra: Extra) -> Self {
        Self {
            id,
            tokens: Vec::new(),
            hashes: Vec::new(),
            extra,
            num_prompt_tokens: 0,
            num_computed_tokens: 0,
            last_step: 0..0,
            junction: 0,
            life: Life::Waits,
            by_value: ValueCursor::default(),
            tables: vec![Table::default(); num_groups],
            quiet_until: 0,
            chain: None,
        }
    }

    pub(super) fn author(&self) -> Author {
        Author::of(self.id)
    }

    pub(super) fn num_tokens(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// The tables, one for each group.
    pub(super) fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The tables, to be changed. This discards what was known about the next decoding steps.
    pub(super) fn tables_mut(&mut self) -> &mut [Table] {
        self.forget_quiet_steps();
        &mut self.tables
    }

    /// Makes the next decoding step look at the tables.
    pub(super) fn forget_quiet_steps(&mut self) {
        self.quiet_until = 0;
    }

    /// Remembers that decoding steps change no table before this many tokens are computed.
    pub(super) fn note_quiet_steps(&mut self, until: u32) {
        self.quiet_until = until;
    }

    /// Computes one more token if that changes no table, and returns whether it did.
    pub(super) fn decode_quietly(&mut self) -> bool {
        let computed = self.num_computed_tokens;
        let is_quiet = computed + 1 < self.quiet_until;
        if is_quiet {
            self.note_step(computed, computed + 1);
        }
        is_quiet
    }

    /// Notes a step that computes the tokens from `start` to `end`.
    pub(super) fn note_step(&mut self, start: u32, end: u32) {
        self.last_step = start..end;
        self.num_computed_tokens = end;
    }

    /// Notes that the last step does not run for this request.
    pub(super) fn leave_step(&mut self) {
        self.num_computed_tokens = self.num_computed_tokens.min(self.last_step.start);
    }

    /// How many of the last step's tokens come after the first `num_tokens` tokens; `None` if the
    /// step began there or later.
    pub(super) fn num_drafts_at(&self, num_tokens: u32) -> Option<u32> {
        let Range { start, end } = self.last_step;
        (num_tokens > start).then(|| end.saturating_sub(num_tokens))
    }

    /// The source of the request's blocks, as its events tell it.
    pub(super) fn source(&self) -> Source<'_> {
        Source {
            request: self.id,
            tokens: &self.tokens,
            extra: &self.extra,
        }
    }

    /// Whether any group has adopted, allocated or registered something. Then no hit can be added.
    pub(super) fn is_tracked(&self) -> bool {
        let is_started = |table: &Table| table.num_cached.is_some() || !table.blocks.is_empty();
        self.tables.iter().any(is_started)
    }

    /// Appends tokens, which are not hashed yet.
    pub(super) fn append(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.forget_quiet_steps();
    }

    /// Takes back the last token, and the hashes after the first `num_hashes`.
    pub(super) fn drop_last(&mut self, num_hashes: usize) {
        self.tokens.pop();
        if self.hashes.len() > num_hashes {
            self.hashes.truncate(num_hashes);
            self.chain = None;
        }
    }

    /// Hashes the whole blocks that are not hashed yet.
    pub(super) fn grow(&mut self, function: HashFunction, cut: HashBlocks) -> Result<()> {
        let covered = self.tokens.len().saturating_sub(cut.lookahead as usize);
        // Most decoding steps end here, without a division.
        if covered < (self.hashes.len() + 1) * cut.tokens as usize {
            return Ok(());
        }
        let num_hashes = covered / cut.tokens as usize;
        let media = self.extra.media_items();
        let spec = ChainSpec::new(function.algo, function.none_hash, cut.tokens)?
            .with_lookahead(cut.lookahead)
            .with_extra(self.extra.keys(&media))?;
        let chain = self.chain.get_or_insert_with(|| match self.hashes.last() {
            Some(&parent) => Chain::resume(parent, self.hashes.len()),
            None => Chain::new(&spec),
        });
        let hashes = &mut self.hashes;
        hashes.reserve(num_hashes - hashes.len());
        chain.extend(&spec, &self.tokens, |digest| hashes.push(digest));
        Ok(())
    }

    /// Appends hashes that the engine computed, which continue the existing ones.
    pub(super) fn append_hashes(&mut self, hashes: &[Digest], block: u32) -> Result<()> {
        let most = self.tokens.len() / block as usize;
        if self.hashes.len() + hashes.len() > most {
            return Err(Error::InvalidValue(format!(
                "{} block hashes for {} tokens; blocks of {block} tokens have at most {most}",
                self.hashes.len() + hashes.len(),
                self.tokens.len()
            )));
        }
        self.hashes.extend_from_slice(hashes);
        self.chain = None;
        Ok(())
    }

    /// The tokens that are computed, without drafts that the request does not have yet.
    pub(super) fn num_known_computed(&self) -> u32 {
        self.num_computed_tokens.min(self.num_tokens())
    }

    /// Refuses a commit of more tokens than are computed.
    pub(super) fn check_commit(&self, num_tokens: u32) -> Result<()> {
        let computed = self.num_known_computed();
        if num_tokens > computed {
            return Err(Error::InvalidValue(format!(
                "request {}: commit of {num_tokens} tokens, {computed} are computed",
                self.id
            )));
        }
        Ok(())
    }

    /// Refuses to append a token to a request of which others are still to be computed, or were
    /// computed as drafts.
    pub(super) fn check_decode(&self) -> Result<()> {
        let (computed, known) = (self.num_computed_tokens, self.num_tokens());
        if computed == known {
            return Ok(());
        }
        let remedy = if computed < known {
            "allocate the others first"
        } else {
            "roll back or extend by the drafts first"
        };
        Err(Error::InvalidValue(format!(
            "request {}: decode, but {computed} of {known} tokens are computed; {remedy}",
            self.id
        )))
    }

    /// Sets how many tokens are computed. The request keeps its blocks.
    pub(super) fn roll_back(&mut self, num_computed_tokens: u32) {
        self.num_computed_tokens = num_computed_tokens;
        self.forget_quiet_steps();
    }

    /// Forgets tokens, and the hashes that cover any of them.
    pub(super) fn truncate(&mut self, num_tokens: u32, cut: HashBlocks) {
        self.tokens.truncate(num_tokens as usize);
        let hashed = num_tokens.saturating_sub(cut.lookahead) / cut.tokens;
        self.hashes.truncate(hashed as usize);
        self.chain = None;
        self.roll_back(self.num_computed_tokens.min(num_tokens));
    }

    /// Gives up all blocks, group by group in the order of their positions.
    pub(super) fn clear_tables(&mut self) -> Vec<Vec<BlockId>> {
        self.by_value.rewind(0);
        let tables = self.tables_mut().iter_mut().map(std::mem::take);
        tables.map(|table| table.blocks).collect()
    }

    /// Of the hashes that are known, the last one of each of the first `most` runs of `every`.
    pub(super) fn hashes_every(
        &self,
        every: u32,
        most: u32,
    ) -> impl DoubleEndedIterator<Item = &Digest> + ExactSizeIterator {
        let every = every as usize;
        let lasts = self.hashes.iter().skip(every - 1).step_by(every);
        lasts.take(most as usize)
    }

    /// The hash of the first `tokens` tokens, which must end a hash block of `hash_block` tokens.
    pub(super) fn hash_at(&self, tokens: u32, hash_block: u32) -> Option<&Digest> {
        let index = (tokens / hash_block).checked_sub(1)?;
        self.hashes.get(index as usize)
    }
}
