//! How far a step reaches: what a caller asks of it, checked against what the request has.
//!
//! Whatever the numbers are, a step is refused here or has lengths that the pool and the tables can
//! follow. Nothing changes.

use super::io::Need;
use crate::blocks::count;
use crate::cache::core::Core;
use crate::cache::request::Request;
use crate::error::{Error, Result};

/// The most tokens beyond its own that a request may ask blocks for. Engines ask for a few drafts, and
/// a table of states would have an entry for every block in between.
const MOST_TOKENS_AHEAD: u32 = 1 << 16;

/// The lengths of one allocation, in tokens.
///
/// ```text
/// 0                     local              total             main            slots
/// |-- computed, or hit -->|-- loaded -------->|-- this step --->|-- drafts ---->|
/// ```
#[derive(Debug, Clone, Copy)]
pub(super) struct Lengths {
    /// The tokens computed here before, or reused now.
    pub local: u32,
    /// `local` and the tokens that were computed elsewhere.
    pub total: u32,
    /// `total` and the tokens that this step computes.
    pub main: u32,
    /// All tokens that need slots.
    pub slots: u32,
}

impl Lengths {
    /// The lengths that a need asks for.
    pub(super) fn of(core: &Core, request: &Request, need: &Need) -> Result<Self> {
        check_loading(core, need)?;
        core.check_length(request.id, request.num_tokens())?;
        let tracked = request.num_computed_tokens;
        let computed = need.num_computed_tokens.unwrap_or(tracked);
        check_computed(core, request, computed)?;
        let max = core.config.max_model_len;
        let local = computed.saturating_add(need.num_hit_tokens);
        let total = local.saturating_add(need.num_external_tokens).min(max);
        let main = total.saturating_add(need.num_new_tokens);
        check_hit_length(core, request, need.num_hit_tokens, local)?;
        check_external(request, need.num_external_tokens, local)?;
        check_ahead(request, need, total)?;
        Ok(Self {
            local,
            total,
            main,
            slots: main.saturating_add(need.num_lookahead_tokens).min(max),
        })
    }

    /// The lengths of a step that would compute all tokens of a request.
    pub(super) fn of_all(self, core: &Core, request: &Request) -> Self {
        let all = request.num_tokens().min(core.config.max_model_len);
        Self {
            main: all,
            slots: all,
            ..self
        }
    }
}

/// Refuses a hit that ends where no hit can, and a hit for a request that already runs.
fn check_hit_length(core: &Core, request: &Request, hit: u32, local: u32) -> Result<()> {
    if hit == 0 {
        return Ok(());
    }
    let boundary = hit.saturating_add(core.config.topology.replay_tokens);
    let is_aligned = boundary.is_multiple_of(core.config.hit_alignment());
    if !is_aligned || local >= request.num_tokens() {
        return Err(Error::InvalidValue(format!(
            "request {}: no hit ends at {hit} of {} tokens; take what match says",
            request.id,
            request.num_tokens()
        )));
    }
    if request.is_tracked() {
        return Err(Error::InvalidValue(format!(
            "request {}: a hit of {hit} tokens, but it runs already; preempt it first",
            request.id
        )));
    }
    Ok(())
}

/// Refuses more computed tokens than the request has blocks for. Where no group keeps any, drafts
/// are all that can be beyond its tokens.
fn check_computed(core: &Core, request: &Request, computed: u32) -> Result<()> {
    let groups = core.groups.iter().zip(request.tables());
    let covered = groups
        .filter(|(group, _)| group.kind.follows_tokens())
        .map(|(group, table)| count(table.blocks.len()).saturating_mul(group.block))
        .max();
    let most = covered.unwrap_or(request.num_tokens().saturating_add(MOST_TOKENS_AHEAD));
    if computed > most {
        return Err(Error::InvalidValue(format!(
            "request {}: num_computed_tokens = {computed}, but there is room for {most}; say how \
                 many were computed into its blocks",
            request.id
        )));
    }
    Ok(())
}

/// Refuses more tokens from elsewhere than the request has.
fn check_external(request: &Request, external: u32, local: u32) -> Result<()> {
    let (id, known) = (request.id, request.num_tokens());
    if external == 0 {
        return Ok(());
    }
    if local.checked_add(external).is_none_or(|end| end > known) {
        return Err(Error::InvalidValue(format!(
            "request {id}: num_external_tokens = {external} after {local} of its {known} tokens; \
                 a load brings at most the rest"
        )));
    }
    Ok(())
}

/// Refuses blocks for tokens that are far beyond those of the request.
fn check_ahead(request: &Request, need: &Need, total: u32) -> Result<()> {
    let (new, lookahead) = (need.num_new_tokens, need.num_lookahead_tokens);
    let asked = total.saturating_add(new).saturating_add(lookahead);
    let known = request.num_tokens();
    if asked.saturating_sub(known.max(total)) > MOST_TOKENS_AHEAD {
        return Err(Error::InvalidValue(format!(
            "request {}: num_new_tokens = {new} and num_lookahead_tokens = {lookahead} after \
                 {total} of its {known} tokens; at most {MOST_TOKENS_AHEAD} can be ahead of what it has",
            request.id
        )));
    }
    Ok(())
}

/// Refuses groups that do not exist.
fn check_loading(core: &Core, need: &Need) -> Result<()> {
    let num_groups = core.groups.len();
    let mut groups = need.loading_groups.iter();
    match groups.find(|&&group| usize::from(group) >= num_groups) {
        Some(group) => Err(Error::InvalidValue(format!(
            "request {}: loading_groups names group {group}; the cache has {num_groups}",
            need.request
        ))),
        None => Ok(()),
    }
}
