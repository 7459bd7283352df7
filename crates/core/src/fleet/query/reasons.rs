//! Why an answer is a bound, where neither the state of the rank nor its groups are the reason.
//!
//! Each text names the remedy, if there is one. Texts are looked for only when an answer is explained.

use super::search::{ClassQuery, RequestSearch};
use crate::fleet::keys::prompt::Prompt;
use crate::fleet::rank::Rank;
use crate::rule;

const RELOADS: &str = "adapter_reloads is set and the request names an adapter, so what is counted \
                       may be of an earlier load; give each load a name of its own, and unset it";
const EXTRA_KEY: &str = "the request has an extra_key, which the pod's events do not show; set \
                         event_format = \"dynamo\" here and in the engine";
const TWO_MARKS: &str = "the pod's requests have an extra_key, and of an adapter it is not known how \
                         both enter a hash; leave one of them out";
const UNIDENTIFIED: &str = "events name adapters by a number alone, or media without their place, so \
                            it is not known what the pod holds of this request";
const NO_FIRST_HASH: &str = "the prompt begins with media, or no store without an extra_key has shown \
                             yet that event_format = \"dynamo\" is right";
const FORGOTTEN: &str = "something that the pod holds was forgotten; its `refused` says why: raise \
                         memory_limit_bytes for forgotten_for_memory, or limbo_limit_bytes for \
                         forgotten_undecided";
const LOADED_AGAIN: &str = "the adapter was loaded again, and what the newest load holds is not \
                            known; give each load a name of its own";
const TWO_HASHES: &str = "a boundary of this request is held for two keys that events do not tell \
                          apart; in SGLang, use cache_salt or event_format = \"dynamo\" instead of \
                          extra_key alone";
const IN_DOUBT: &str = "copies outside the GPU are in doubt since a clear or a restart, until an \
                        event mentions them; tiers = [\"gpu\"] leaves them out";

impl RequestSearch<'_, '_> {
    /// Why one rank's answer to this request is a bound, given the length that the rule gives for what
    /// it was told to hold. Empty where only hashes without a place can be the reason.
    pub(in crate::fleet) fn reason_of_bound(
        &self,
        class_query: ClassQuery<'_>,
        column: usize,
        told: u32,
        scratch: &mut rule::Scratch,
    ) -> &'static str {
        let Some(rank) = &self.model.ranks[column] else {
            return "";
        };
        let set = self.request.tiers;
        if let Some(text) = reason_of_names(rank, &self.request.prompt) {
            return text;
        }
        if self.is_cache_unknown(class_query, rank) {
            return NO_FIRST_HASH;
        }
        if rank.state.forgot.overlaps(set) {
            return FORGOTTEN;
        }
        if self.unambiguous(class_query, column, set, told, scratch) < told {
            let is_loaded_again = rank.adapters.load(self.seed()).is_some();
            return if is_loaded_again {
                LOADED_AGAIN
            } else {
                TWO_HASHES
            };
        }
        if self.expected(class_query, (column, set), told, scratch) > told {
            return IN_DOUBT;
        }
        ""
    }
}

/// What in the names of a request makes its answer a bound.
fn reason_of_names(rank: &Rank, prompt: &Prompt<'_>) -> Option<&'static str> {
    let hidden = rank.catalog.config.hidden;
    let has_lora = prompt.lora.is_some();
    let has_keys = prompt.extra_key.is_some() || hidden.extra_keys;
    let reasons = [
        (hidden.adapter_reloads && has_lora, RELOADS),
        (has_keys && !hidden.dynamo_format, EXTRA_KEY),
        (has_keys && has_lora, TWO_MARKS),
        (rank.unidentified.may_be_of(prompt), UNIDENTIFIED),
    ];
    let reason = reasons.into_iter().find(|(is_so, _)| *is_so);
    reason.map(|(_, text)| text)
}
