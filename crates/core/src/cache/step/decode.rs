//! Decoding steps: one token for each of many requests.
//!
//! Most of these steps change no table: no block begins, is filled, or leaves a window. A request
//! knows up to how many computed tokens this holds.

use super::allocate::Stepper;
use super::io::Need;
use super::plan::{Fit, Plan};
use crate::error::Result;

impl Stepper<'_> {
    /// Appends a token to the request and allocates for it; most steps need no block.
    pub(in crate::cache) fn decode(&mut self, token: u32) -> Result<Fit> {
        let Self {
            core,
            request,
            done,
        } = self;
        let num_hashes = request.hashes.len();
        request.tokens.push(token);
        core.hash(request, None)?;
        if request.decode_quietly() {
            done.counts.resize(done.counts.len() + core.groups.len(), 0);
            return Ok(Ok(()));
        }
        let need = Need {
            request: request.id,
            num_new_tokens: 1,
            ..Need::default()
        };
        let plan = Plan::check(core, request, &need)?;
        let fit = self.allocate(plan, 0);
        match fit {
            Ok(()) => self.request.note_quiet_steps(self.quiet_until()),
            Err(_) => self.request.drop_last(num_hashes),
        }
        Ok(fit)
    }

    /// The next number of computed tokens at which a decoding step frees, takes or registers a
    /// block.
    fn quiet_until(&self) -> u32 {
        let computed = self.request.num_computed_tokens;
        let config = &self.core.config;
        let late = [
            config.num_reprefillable_tokens,
            config.topology.hash_lookahead,
        ];
        let events = self
            .core
            .groups
            .iter()
            .map(|g| g.next_event(computed, late));
        events.min().unwrap_or(u32::MAX)
    }
}
