//! Decoding steps: one token for each of many requests.
//!
//! Most of these steps change no table: no block begins, is filled, or leaves a window. A request
//! knows up to how many computed tokens this holds.

use super::Cache;
use super::core::Core;
use super::request::Request;
use super::step::{Allocation, Need};
use crate::error::{Error, Result};

impl Cache {
    /// Does a decoding step: appends one token to each request, then allocates one for each.
    ///
    /// # Errors
    /// The same as for `allocate`; then nothing has changed.
    pub fn decode(&mut self, ids: &[u64], tokens: &[u32]) -> Result<Allocation> {
        if ids.len() != tokens.len() {
            return Err(Error::InvalidValue(format!(
                "{} requests and {} tokens; give one token for each",
                ids.len(),
                tokens.len()
            )));
        }
        for &id in ids {
            let num_tokens = self.request(id)?.num_tokens();
            self.core.check_length(id, num_tokens + 1)?;
        }
        let mut done = Allocation::default();
        done.counts.reserve(ids.len() * self.core.groups.len());
        let mut is_full = false;
        for (&id, &token) in ids.iter().zip(tokens) {
            let out = &mut done;
            let fits = self.with(id, |core, request| {
                request.tokens.push(token);
                core.hash(request, None)?;
                // Tokens are appended to all requests; blocks are handed out until the first
                // request that does not fit.
                if is_full {
                    return Ok(false);
                }
                core.decode(request, out)
            })?;
            done.num_fit += usize::from(fits);
            is_full |= !fits;
        }
        Ok(done)
    }
}

impl Core {
    /// Allocates one token for a request; most steps need no block for it.
    fn decode(&mut self, request: &mut Request, done: &mut Allocation) -> Result<bool> {
        if request.decode_quietly() {
            done.counts.resize(done.counts.len() + self.groups.len(), 0);
            return Ok(true);
        }
        let need = Need {
            request: request.id,
            num_new_tokens: 1,
            ..Need::default()
        };
        let plan = self.check(request, &need)?;
        let fits = self.allocate(request, plan, 0, done);
        if fits {
            request.note_quiet_steps(self.quiet_until(request));
        }
        Ok(fits)
    }

    /// The next number of computed tokens at which a decoding step frees, takes or registers a
    /// block.
    fn quiet_until(&self, request: &Request) -> u32 {
        let computed = request.num_computed_tokens;
        let config = &self.config;
        let late = [
            config.num_reprefillable_tokens,
            config.topology.hash_lookahead,
        ];
        let events = self.groups.iter().map(|g| g.next_event(computed, late));
        events.min().unwrap_or(u32::MAX)
    }
}
