//! Decoding steps: one token for each of many requests.
//!
//! Most of them change no table: no block begins, is filled, or leaves a window. A request knows up
//! to how many computed tokens that is so.

use super::allocate::{Need, Store};
use super::request::Request;
use super::{Allocation, Cache};
use crate::blocks::BlockId;
use crate::error::{Error, Result};

impl Cache {
    /// A decoding step: appends one token to each request, then allocates one for each.
    ///
    /// # Errors
    /// As `allocate`; nothing has changed then.
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
            self.store.check_length(id, num_tokens + 1)?;
        }
        let mut done = Allocation::default();
        let mut is_full = false;
        for (&id, &token) in ids.iter().zip(tokens) {
            let out = (&mut done.blocks, &mut done.counts);
            let fits = self.with(id, |store, request| {
                request.tokens.push(token);
                store.hash(request, None)?;
                // Tokens are appended to all; blocks are handed out up to the first that lacks them.
                if is_full {
                    return Ok(false);
                }
                store.decode(request, out)
            })?;
            done.num_fit += usize::from(fits);
            is_full |= !fits;
        }
        Ok(done)
    }
}

impl Store {
    /// Allocates one token, in most steps without any block.
    fn decode(
        &mut self,
        request: &mut Request,
        out: (&mut Vec<BlockId>, &mut Vec<u32>),
    ) -> Result<bool> {
        if request.num_computed_tokens + 1 < request.quiet_until {
            request.num_computed_tokens += 1;
            out.1.resize(out.1.len() + self.groups.len(), 0);
            return Ok(true);
        }
        let need = Need {
            request: request.id,
            num_new_tokens: 1,
            ..Need::default()
        };
        let fits = self.allocate(request, &need, 0, out)?;
        if fits {
            request.quiet_until = self.quiet_until(request);
        }
        Ok(fits)
    }

    /// The next number of computed tokens at which a decoding step frees, takes or registers.
    fn quiet_until(&self, request: &Request) -> u32 {
        let computed = request.num_computed_tokens;
        let late = self.config.num_reprefillable_tokens;
        let behind = [late, self.config.topology.hash_lookahead];
        let events = self.groups.iter().map(|g| g.next_event(computed, behind));
        events.min().unwrap_or(u32::MAX)
    }
}
