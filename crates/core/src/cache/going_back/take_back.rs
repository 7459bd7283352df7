//! Tokens that are taken back: computed ones after drafts were rejected, or known ones.

use super::rewind::gone;
use crate::cache::core::Core;
use crate::cache::group::Kind;
use crate::cache::request::Request;
use crate::error::{Error, Result};

impl Core {
    pub(super) fn check_roll_back(&self, request: &Request, num_tokens: u32) -> Result<()> {
        let computed = request.num_computed_tokens;
        // vLLM's own scheduler answers for what it takes back.
        if num_tokens == computed || (num_tokens < computed && self.config.follows_vllm) {
            return Ok(());
        }
        self.check_way_back(request, num_tokens, "roll back", |speculative| {
            let drafts = request.num_drafts_at(num_tokens);
            drafts.is_some_and(|drafts| drafts <= speculative)
        })
    }

    /// Whether a request can go on from an earlier boundary: every group still holds what is read
    /// there. `is_state_kept` says it of a group of states that keeps this many speculative ones.
    pub(super) fn check_way_back(
        &self,
        request: &Request,
        num_tokens: u32,
        verb: &str,
        is_state_kept: impl Fn(u32) -> bool,
    ) -> Result<()> {
        let computed = request.num_computed_tokens;
        if num_tokens > computed {
            return Err(Error::InvalidValue(format!(
                "request {}: {verb} to {num_tokens} tokens, {computed} are computed",
                request.id
            )));
        }
        for (group, table) in self.groups.iter().zip(request.tables()) {
            let what = match group.kind {
                Kind::State { speculative } => {
                    (!is_state_kept(speculative)).then(|| "its state has moved on".to_owned())
                }
                Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } => {
                    gone(group, table, num_tokens)
                        .map(|at| format!("its block {at} was given back"))
                }
                Kind::Cross | Kind::Ring | Kind::Nothing => None,
            };
            if let Some(what) = what {
                return Err(Error::NoWayBack {
                    request: request.id,
                    group: group.index,
                    num_tokens,
                    what,
                });
            }
        }
        Ok(())
    }
}
