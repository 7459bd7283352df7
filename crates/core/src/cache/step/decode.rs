//! Decoding steps: one token for each of many requests.
//!
//! Most of these steps change no table: no block begins, is filled, or leaves a window. A request
//! knows up to how many computed tokens this holds.

use super::io::{Allocation, Need};
use super::plan::Fit;
use crate::cache::Cache;
use crate::cache::core::Core;
use crate::cache::request::Request;
use crate::error::{Error, Result};

impl Cache {
    /// Does a decoding step: appends one token to each request and allocates for it, up to the first
    /// that does not fit. That one and those after it are as they were.
    ///
    /// # Errors
    /// The same as for `allocate`, and `InvalidValue` for a request with tokens that are not
    /// computed; then nothing has changed.
    pub fn decode(&mut self, ids: &[u64], tokens: &[u32]) -> Result<Allocation> {
        if ids.len() != tokens.len() {
            return Err(Error::InvalidValue(format!(
                "{} requests and {} tokens; give one token for each",
                ids.len(),
                tokens.len()
            )));
        }
        self.check_each(ids.iter().copied(), |request| {
            request.check_decode()?;
            let num_tokens = request.num_tokens() + 1;
            self.core.check_length(request.id, num_tokens)
        })?;
        let mut done = Allocation::default();
        done.counts.reserve(ids.len() * self.core.groups.len());
        for (&id, &token) in ids.iter().zip(tokens) {
            let out = &mut done;
            let fit = self.with(id, |core, request| core.decode(request, token, out))?;
            if let Err(reason) = fit {
                done.reason = Some(reason);
                break;
            }
            done.num_fit += 1;
        }
        Ok(done)
    }
}

impl Core {
    /// Appends a token to a request and allocates for it; most steps need no block.
    fn decode(&mut self, request: &mut Request, token: u32, done: &mut Allocation) -> Result<Fit> {
        let num_hashes = request.hashes.len();
        request.tokens.push(token);
        self.hash(request, None)?;
        if request.decode_quietly() {
            done.counts.resize(done.counts.len() + self.groups.len(), 0);
            return Ok(Ok(()));
        }
        let need = Need {
            request: request.id,
            num_new_tokens: 1,
            ..Need::default()
        };
        let plan = self.check(request, &need)?;
        let fit = self.allocate(request, plan, 0, done);
        match fit {
            Ok(()) => request.note_quiet_steps(self.quiet_until(request)),
            Err(_) => request.drop_last(num_hashes),
        }
        Ok(fit)
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
