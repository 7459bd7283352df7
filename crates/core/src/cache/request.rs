//! One request: its tokens and hashes, and its block table in every group.

use super::checkpoints::Ending;
use crate::blocks::{BlockId, Extra, Source};
use crate::error::{Error, Result};
use crate::hash::{Chain, ChainSpec, Digest};

use super::config::HashFunction;
use super::saved_state::SavedState;

/// What a state group remembers of a running request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StateCursor {
    /// The request has its own running state.
    pub allocated: bool,
    /// Position of the state that the step before wrote.
    pub last: Option<u32>,
    /// Positions before this one are given back.
    pub retired: u32,
    /// The state at the prompt's last boundary inside a block, and the tokens it covers: findable,
    /// and overwritten by the step that continues it.
    pub tail: Option<(BlockId, u32)>,
    /// What the step at hand saves on its way.
    pub saved: Option<SavedState>,
}

/// The blocks of one request in one group.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub blocks: Vec<BlockId>,
    /// Leading blocks that need no registering; `None` until the first ones do not.
    pub num_cached: Option<u32>,
    /// Position and block of a shared tail that must be copied before it is written.
    pub shared_tail: Option<(u32, BlockId)>,
    pub state: StateCursor,
}

/// Whether a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It never did.
    Waits,
    Runs,
    /// It did, and gave its blocks back.
    Preempted,
}

#[derive(Debug)]
pub(super) struct Request {
    pub id: u64,
    pub tokens: Vec<u32>,
    pub hashes: Vec<Digest>,
    pub extra: Extra,
    pub num_prompt_tokens: u32,
    pub num_computed_tokens: u32,
    /// Where other requests are known to branch off; 0 = nowhere.
    pub junction: u32,
    pub tables: Vec<Table>,
    pub life: Life,
    /// Decoding steps that end before so many computed tokens change no table.
    pub quiet_until: u32,
    /// Retention by value: what will end with it, and up to where it was looked for checkpoints.
    pub ending: Ending,
    pub num_checked: u32,
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
            junction: 0,
            tables: vec![Table::default(); num_groups],
            life: Life::Waits,
            quiet_until: 0,
            ending: Ending::Start,
            num_checked: 0,
            chain: None,
        }
    }

    pub(super) fn num_tokens(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Whose tokens the events of its blocks list.
    pub(super) fn source(&self) -> Source<'_> {
        Source {
            request: self.id,
            tokens: &self.tokens,
            extra: &self.extra,
        }
    }

    /// Whether any group has adopted, allocated or registered something: no hit can be added any
    /// more.
    pub(super) fn is_tracked(&self) -> bool {
        let is_started = |table: &Table| table.num_cached.is_some() || !table.blocks.is_empty();
        self.tables.iter().any(is_started)
    }

    /// Hashes the whole blocks that are not hashed yet.
    pub(super) fn grow(
        &mut self,
        function: HashFunction,
        (block, lookahead): (u32, u32),
    ) -> Result<()> {
        let num_hashes = self.tokens.len().saturating_sub(lookahead as usize) / block as usize;
        if self.hashes.len() >= num_hashes {
            return Ok(());
        }
        let media = self.extra.media_items();
        let spec = ChainSpec::new(function.algo, function.none_hash, block)?
            .with_lookahead(lookahead)
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

    /// Takes hashes that the engine computed: they continue those that are there.
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

    /// Forgets tokens, and the hashes that cover any of them.
    pub(super) fn truncate(&mut self, num_tokens: u32, (block, lookahead): (u32, u32)) {
        self.tokens.truncate(num_tokens as usize);
        let hashed = num_tokens.saturating_sub(lookahead) / block;
        self.hashes.truncate(hashed as usize);
        self.chain = None;
    }

    /// Gives all blocks up, group by group in the order of their positions.
    pub(super) fn clear_tables(&mut self) -> Vec<Vec<BlockId>> {
        self.num_checked = 0;
        let tables = self.tables.iter_mut().map(std::mem::take);
        tables.map(|table| table.blocks).collect()
    }

    /// The hash of the prefix that ends with block `position` of `block` tokens.
    pub(super) fn hash_at(&self, tokens: u32, hash_block: u32) -> Option<&Digest> {
        let index = (tokens / hash_block).checked_sub(1)?;
        self.hashes.get(index as usize)
    }
}
