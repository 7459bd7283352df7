//! The arguments of the cache's methods, read from Python objects by attribute name.

use kvbraid_core::cache::{Boundary, Need, Recovery};
use pyo3::prelude::*;

use super::answers::block_ids;
use crate::errors::InvalidValueError;
use crate::recovery::Items;

/// The number of a request.
#[derive(Clone, Copy)]
pub(super) struct RequestIdArg(pub u64);

impl FromPyObject<'_, '_> for RequestIdArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let expected = "the number that add returned";
        let number = object.extract();
        (number.map(Self)).map_err(|_| refused("request", object, expected))
    }
}

/// The numbers of several requests.
pub(super) struct RequestsArg(pub Vec<u64>);

impl FromPyObject<'_, '_> for RequestsArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let expected = "a list of numbers that add returned";
        let numbers = object.extract();
        (numbers.map(Self)).map_err(|_| refused("requests", object, expected))
    }
}

fn refused(name: &str, object: Borrowed<'_, '_, PyAny>, expected: &str) -> PyErr {
    let shown = object
        .repr()
        .map_or_else(|_| "unprintable".to_owned(), |text| text.to_string());
    InvalidValueError::new_err(format!("{name} is {shown:.80}; expected {expected}"))
}

/// `kvbraid.cache.Match`.
#[derive(FromPyObject)]
struct MatchArg {
    num_tokens: u32,
    junction: u32,
}

/// `kvbraid.cache.Need`.
#[derive(FromPyObject)]
pub(super) struct NeedArg {
    request: u64,
    num_new_tokens: u32,
    #[pyo3(attribute("match"))]
    found: Option<MatchArg>,
    num_hit_tokens: u32,
    junction: Option<u32>,
    num_external_tokens: u32,
    num_lookahead_tokens: u32,
    num_in_flight_tokens: u32,
    num_encoder_tokens: u32,
    num_computed_tokens: Option<u32>,
    delay_commit: bool,
    loading_groups: Vec<u16>,
    full_sequence_must_fit: bool,
    is_waiting: bool,
}

impl NeedArg {
    pub(super) fn decode(self) -> PyResult<Need> {
        let (num_hit_tokens, junction) = match self.found {
            None => (self.num_hit_tokens, self.junction),
            Some(found) if self.num_hit_tokens == 0 && self.junction.is_none() => {
                (found.num_tokens, Some(found.junction))
            }
            Some(found) => {
                return Err(InvalidValueError::new_err(format!(
                    "request {}: a match of {} tokens, and num_hit_tokens {} or a junction; give \
                     the match alone, or only what it says",
                    self.request, found.num_tokens, self.num_hit_tokens
                )));
            }
        };
        Ok(Need {
            request: self.request,
            num_new_tokens: self.num_new_tokens,
            num_hit_tokens,
            junction,
            num_external_tokens: self.num_external_tokens,
            num_lookahead_tokens: self.num_lookahead_tokens,
            num_in_flight_tokens: self.num_in_flight_tokens,
            num_encoder_tokens: self.num_encoder_tokens,
            num_computed_tokens: self.num_computed_tokens,
            delay_commit: self.delay_commit,
            loading_groups: self.loading_groups,
            full_sequence_must_fit: self.full_sequence_must_fit,
            is_waiting: self.is_waiting,
        })
    }
}

/// `kvbraid.cache.Recovery`.
#[derive(FromPyObject)]
pub(super) struct RecoveryArg {
    forget: Vec<u32>,
    commit: Boundaries,
    rewind: Boundaries,
    hold: Vec<u32>,
    preempt: Vec<u64>,
    zero: Boundaries,
}

impl RecoveryArg {
    pub(super) fn decode(self) -> Recovery {
        Recovery {
            forget: block_ids(self.forget),
            commit: boundaries(self.commit),
            rewind: boundaries(self.rewind),
            hold: block_ids(self.hold),
            preempt: self.preempt,
            zero: boundaries(self.zero),
        }
    }
}

/// Requests, each with a number of tokens.
type Boundaries = Items<u64, u32>;

fn boundaries(all: Boundaries) -> Vec<Boundary> {
    let boundary = |(request, num_tokens)| Boundary {
        request,
        num_tokens,
    };
    all.0.into_iter().map(boundary).collect()
}

/// Consecutive positions: Python's `range`.
#[derive(FromPyObject)]
pub(super) struct RangeArg {
    pub start: u32,
    pub stop: u32,
}

/// What no hash covers of a request: `kvbraid.cache.step.Labels`.
#[derive(FromPyObject)]
pub(super) struct LabelsArg {
    pub lora_id: Option<i64>,
    pub session_id: Option<String>,
    pub will_return: Option<f64>,
}
