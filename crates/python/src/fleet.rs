//! The fleet index as a Python class. Every call that does work releases the interpreter first.

mod arguments;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use arguments::{OptionsArg, RegistrationArg, RequestArg};
use kvbraid_core::fleet::{
    Answer, Applied, Asked, GroupStrip, Index, Member, RankInfo, RequestKeys, Row, ScoreRequest,
    SeenBefore, State,
};
use kvbraid_core::spec::GroupSpec;
use kvbraid_core::{Error, Result};
use parking_lot::MutexGuard;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::errors::to_python;
use crate::shared_index::SharedIndex;
use crate::tokens::PromptArg;

/// So many tokens are promised in a few microseconds once their keys are known.
const BRIEF_TOKENS: usize = 32_768;

/// The counts of stored, removed, cleared and refused.
type AppliedTuple = (u64, u64, u64, u64);
/// The tokens that were ever shown; how many boundaries are remembered, how many were forgotten.
type SeenTuple = (u32, u64, u64);
/// Index, kind, block size, window, chunk, eagle.
type GroupTuple = (
    Option<u16>,
    &'static str,
    u32,
    Option<u32>,
    Option<u32>,
    bool,
);
type StripTuple = (GroupTuple, Vec<bool>, Option<Vec<u32>>);
/// The reason why the state is not exact, and the strips of all groups.
type WhyTuple = (String, Vec<StripTuple>);
/// Pod, rank, model, (state, reason), messages, groups, (tokens, join, query, unplaced), refused,
/// (hash function, blocks).
type InfoTuple = (
    String,
    u32,
    String,
    (&'static str, String),
    u64,
    Vec<GroupTuple>,
    (u64, u64, u64, u64),
    BTreeMap<String, u64>,
    (&'static str, usize, usize, Vec<Vec<usize>>),
);

/// What every pod of a fleet holds, and what a request can reuse.
#[pyclass(frozen, module = "kvbraid._native")]
pub(crate) struct FleetCore {
    index: SharedIndex,
}

/// One answer, which can be read as JSON, with its request, which can be promised.
#[pyclass(frozen, module = "kvbraid._native")]
pub(crate) struct FleetAnswer {
    request: RequestArg,
    tokens: PromptArg,
    answer: Answer,
    seen: Option<SeenBefore>,
    keys: RequestKeys,
}

impl FleetAnswer {
    fn of(request: RequestArg, tokens: PromptArg, asked: Asked) -> Self {
        Self {
            request,
            tokens,
            answer: asked.answer,
            seen: asked.seen,
            keys: asked.keys,
        }
    }
}

/// The ranks of an answer. It equals that of another answer if it is the very same list.
#[pyclass(frozen, eq, hash, module = "kvbraid._native")]
pub(crate) struct FleetRoster(Arc<[Member]>);

impl PartialEq for FleetRoster {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Hash for FleetRoster {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

#[pymethods]
impl FleetRoster {
    /// The pod and the rank of each row.
    fn ranks(&self) -> Vec<(&str, u32)> {
        let members = self.0.iter();
        members.map(|m| (m.pod.as_ref(), m.dp_rank)).collect()
    }
}

#[pymethods]
impl FleetAnswer {
    /// The body of the HTTP answer: a row for every rank.
    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let num_tokens = self.tokens.tokens().len();
        let body = py.detach(|| self.answer.to_json(&self.request.model, num_tokens));
        PyBytes::new(py, &body)
    }

    /// The ranks of the rows.
    fn roster(&self) -> FleetRoster {
        FleetRoster(Arc::clone(&self.answer.roster))
    }

    /// For each row the place of its state among all states, as a byte.
    fn states<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let rows = self.answer.rows.iter();
        let states: Vec<u8> = rows.map(|row| row.state as u8).collect();
        PyBytes::new(py, &states)
    }

    /// Lower, upper, expected, present, soon, expected soon, present soon: for each row a native
    /// integer of 32 bits.
    fn columns<'py>(&self, py: Python<'py>) -> [Bound<'py, PyBytes>; 7] {
        let numbers: [fn(&Row) -> u32; 7] = [
            |row| row.bounds.lower,
            |row| row.bounds.upper,
            |row| row.expected,
            |row| row.present,
            |row| row.bounds.upper.max(row.coming),
            |row| row.expected.max(row.coming),
            |row| row.present_soon,
        ];
        numbers.map(|number| {
            let rows = self.answer.rows.iter();
            let bytes: Vec<u8> = rows.flat_map(|row| number(row).to_ne_bytes()).collect();
            PyBytes::new(py, &bytes)
        })
    }

    /// What was ever shown of the prompt, as `FleetCore.seen` says it, if it was asked for.
    fn seen(&self) -> Option<SeenTuple> {
        self.seen.map(seen_tuple)
    }

    fn __len__(&self) -> usize {
        self.answer.rows.len()
    }
}

impl FleetCore {
    /// Makes a change, without the GIL.
    fn change<T: Send>(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut Index) -> Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.index.change(change)).map_err(to_python)
    }

    /// Does what takes a few microseconds: at once, unless another thread has the index. To release
    /// the interpreter would take longer, because who asks for it back waits for other threads.
    fn briefly<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Index) -> T + Send) -> T {
        if let Some(mut index) = self.index.try_ask() {
            return work(&mut index);
        }
        py.detach(|| work(&mut self.index.ask()))
    }
}

/// Asks about a request, without the GIL.
fn ask<T: Send>(
    py: Python<'_>,
    request: &RequestArg,
    tokens: &PromptArg,
    question: impl FnOnce(&ScoreRequest<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    py.detach(|| request.with(tokens, question))
        .map_err(to_python)
}

fn applied_tuple(applied: Applied) -> AppliedTuple {
    (
        applied.stored,
        applied.removed,
        applied.cleared,
        applied.refused,
    )
}

fn seen_tuple(seen: SeenBefore) -> SeenTuple {
    (seen.tokens, seen.num_remembered, seen.num_forgotten)
}

/// The same error, saying which of several requests it is about.
fn numbered(py: Python<'_>, number: usize, error: &PyErr) -> PyErr {
    let text = format!("requests[{number}]: {}", error.value(py));
    PyErr::from_type(error.get_type(py), text)
}

fn group_tuple(group: Option<u16>, spec: GroupSpec) -> GroupTuple {
    (
        group,
        spec.kind.name(),
        spec.block_size,
        spec.window,
        spec.chunk,
        spec.eagle,
    )
}

fn strip_tuple(strip: GroupStrip) -> StripTuple {
    (
        group_tuple(strip.group, strip.spec),
        strip.held,
        strip.accepted,
    )
}

fn info_tuple(info: RankInfo) -> InfoTuple {
    let placed = info.placed;
    let held = info
        .groups
        .iter()
        .map(|group| group.held.to_vec())
        .collect();
    (
        info.pod,
        info.dp_rank,
        info.model,
        (info.state.name(), info.reason),
        info.messages,
        info.groups
            .iter()
            .map(|g| group_tuple(g.group, g.spec))
            .collect(),
        (placed.tokens, placed.join, placed.query, info.unplaced),
        info.refused,
        (info.hash_function, info.blocks, info.bytes, held),
    )
}

#[pymethods]
#[expect(clippy::needless_pass_by_value, reason = "arguments arrive owned")]
impl FleetCore {
    #[new]
    fn new(options: OptionsArg) -> Self {
        Self {
            index: SharedIndex::new(Index::new(options.decode())),
        }
    }

    /// Refuses a pod whose groups or engine no index takes.
    #[staticmethod]
    fn check(pod: RegistrationArg) -> PyResult<()> {
        pod.decode()?.check().map_err(to_python)
    }

    fn register(&self, py: Python<'_>, name: &str, pod: RegistrationArg) -> PyResult<bool> {
        let spec = pod.decode()?;
        self.change(py, |index| index.register(name, spec))
    }

    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.change(py, |index| index.remove(name))
    }

    /// (stored, removed, cleared, refused)
    fn apply(
        &self,
        py: Python<'_>,
        name: &str,
        dp_rank: u32,
        payload: &[u8],
    ) -> PyResult<AppliedTuple> {
        let applied = py.detach(|| self.index.take_in(name, dp_rank, payload));
        applied.map(applied_tuple).map_err(to_python)
    }

    /// The same as `apply` for each payload in order, until `budget_us` have passed; at least one
    /// is applied.
    fn apply_many(
        &self,
        py: Python<'_>,
        name: &str,
        dp_rank: u32,
        payloads: Vec<PyBackedBytes>,
        budget_us: u64,
    ) -> PyResult<Vec<AppliedTuple>> {
        let budget = Duration::from_micros(budget_us);
        let done = py.detach(|| self.index.take_in_many(name, dp_rank, &payloads, budget));
        let done = done.map_err(to_python)?.into_iter();
        Ok(done.map(applied_tuple).collect())
    }

    /// The pod as bytes, with the caller's note.
    fn save<'py>(&self, py: Python<'py>, name: &str, note: &str) -> PyResult<Bound<'py, PyBytes>> {
        let saved = py.detach(|| self.index.save(name, note)?.seal());
        saved
            .map(|bytes| PyBytes::new(py, &bytes))
            .map_err(to_python)
    }

    /// The note that was saved with the pod.
    fn load(&self, py: Python<'_>, name: &str, saved: &[u8]) -> PyResult<String> {
        py.detach(|| self.index.load(name, saved))
            .map_err(to_python)
    }

    fn reset(&self, py: Python<'_>, name: &str, dp_rank: u32) -> PyResult<()> {
        py.detach(|| self.index.reset(name, dp_rank))
            .map_err(to_python)
    }

    fn lose(&self, py: Python<'_>, name: &str, dp_rank: u32) -> PyResult<()> {
        self.change(py, |index| index.lose(name, dp_rank))
    }

    fn set_state(
        &self,
        py: Python<'_>,
        name: &str,
        dp_rank: u32,
        state: &str,
        reason: String,
    ) -> PyResult<()> {
        let state = State::from_name(state).ok_or_else(|| {
            to_python(Error::InvalidValue(format!(
                "state {state:?} is not a pod state"
            )))
        })?;
        self.change(py, |index| index.set_state(name, dp_rank, state, reason))
    }

    fn note_refused(&self, py: Python<'_>, name: &str, dp_rank: u32, reason: &str) -> PyResult<()> {
        self.change(py, |index| index.note_refused(name, dp_rank, reason))
    }

    fn routed(
        &self,
        py: Python<'_>,
        pod: &str,
        dp_rank: u32,
        request: RequestArg,
        tokens: PromptArg,
        produced: PromptArg,
    ) -> PyResult<()> {
        ask(py, &request, &tokens, |request| {
            self.index.routed(pod, dp_rank, request, produced.tokens())
        })
    }

    /// The number of the promise. It changes nothing that a batch on its way in has found, so it does
    /// not wait for the turn to change the index.
    fn promise(
        &self,
        py: Python<'_>,
        rank: (String, u32),
        request: RequestArg,
        tokens: PromptArg,
        junction: u32,
        sparse_windows: Option<bool>,
    ) -> PyResult<u64> {
        let rank = (rank.0.as_str(), rank.1);
        ask(py, &request, &tokens, |request| {
            let mut index = self.index.ask();
            index.promise(
                rank,
                (request, &RequestKeys::default()),
                junction,
                sparse_windows,
            )
        })
    }

    /// The same for a request that was answered, with the keys of the answer.
    fn promise_answered(
        &self,
        py: Python<'_>,
        rank: (String, u32),
        answer: PyRef<'_, FleetAnswer>,
        junction: u32,
        sparse_windows: Option<bool>,
    ) -> PyResult<u64> {
        let (rank, answer) = ((rank.0.as_str(), rank.1), &*answer);
        let promise = |index: &mut Index| {
            answer.request.with(&answer.tokens, |request| {
                index.promise(rank, (request, &answer.keys), junction, sparse_windows)
            })
        };
        let promised = if answer.tokens.tokens().len() <= BRIEF_TOKENS {
            self.briefly(py, promise)
        } else {
            py.detach(|| promise(&mut self.index.ask()))
        };
        promised.map_err(to_python)
    }

    /// Whether the promise still counted.
    fn withdraw(&self, py: Python<'_>, promise: u64) -> bool {
        self.briefly(py, |index| index.withdraw(promise))
    }

    /// The number of promises that count.
    fn num_promised(&self, py: Python<'_>) -> usize {
        py.detach(|| self.index.ask().num_promised())
    }

    fn seen(&self, py: Python<'_>, request: RequestArg, tokens: PromptArg) -> PyResult<SeenTuple> {
        ask(py, &request, &tokens, |request| self.index.seen(request)).map(seen_tuple)
    }

    fn score(
        &self,
        py: Python<'_>,
        request: RequestArg,
        tokens: PromptArg,
        with_seen: bool,
    ) -> PyResult<FleetAnswer> {
        let asked = ask(py, &request, &tokens, |request| {
            self.index.score(request, with_seen)
        })?;
        Ok(FleetAnswer::of(request, tokens, asked))
    }

    /// The answers of several requests, in order, each as `score` gives it. Between two of them the
    /// index goes to the thread that has waited longest, so nobody waits for more than one answer.
    fn score_many(
        &self,
        py: Python<'_>,
        requests: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    ) -> PyResult<Vec<FleetAnswer>> {
        let asked = requests
            .iter()
            .enumerate()
            .map(|(number, (request, tokens))| {
                let asked = request
                    .extract()
                    .and_then(|request| Ok((request, tokens.extract()?)));
                asked.map_err(|error| numbered(py, number, &error))
            });
        let asked: Vec<(RequestArg, PromptArg)> = asked.collect::<PyResult<_>>()?;
        let answers = py.detach(|| {
            let mut index = self.index.ask();
            let answer = |(number, (request, tokens)): (usize, &(RequestArg, PromptArg))| {
                MutexGuard::bump(&mut index);
                let answer = request.with(tokens, |request| index.ask(request, false));
                answer.map_err(|error| (number, error))
            };
            let asked = asked.iter().enumerate();
            asked
                .map(answer)
                .collect::<std::result::Result<Vec<_>, _>>()
        });
        let answers = answers.map_err(|(number, error)| numbered(py, number, &to_python(error)))?;
        let answered = asked.into_iter().zip(answers);
        Ok(answered
            .map(|((request, tokens), answer)| FleetAnswer::of(request, tokens, answer))
            .collect())
    }

    /// The same as `score` if no other thread has the index now; else nothing.
    fn try_score(
        &self,
        py: Python<'_>,
        request: RequestArg,
        tokens: PromptArg,
    ) -> PyResult<Option<FleetAnswer>> {
        let answer = ask(py, &request, &tokens, |request| {
            let index = self.index.try_ask();
            index.map(|mut index| index.ask(request, false)).transpose()
        })?;
        Ok(answer.map(|answer| FleetAnswer::of(request, tokens, answer)))
    }

    /// The answer; and for each row the reason why its state is not exact, and the strips of its
    /// groups. The strips are drawn after the lock is released.
    fn explain(
        &self,
        py: Python<'_>,
        request: RequestArg,
        tokens: PromptArg,
    ) -> PyResult<(FleetAnswer, Vec<WhyTuple>)> {
        let (explained, strips) = ask(py, &request, &tokens, |request| {
            let explained = self.index.ask().explain(request)?;
            let strips = explained.strips();
            Ok((explained, strips))
        })?;
        let whys = explained.reasons().map(str::to_owned).zip(strips);
        let whys = whys
            .map(|(reason, strip)| (reason, strip.into_iter().map(strip_tuple).collect()))
            .collect();
        let answer = FleetAnswer {
            request,
            tokens,
            answer: explained.answer,
            seen: None,
            keys: RequestKeys::default(),
        };
        Ok((answer, whys))
    }

    fn pods(&self, py: Python<'_>) -> Vec<InfoTuple> {
        let infos = py.detach(|| self.index.pods());
        infos.into_iter().map(info_tuple).collect()
    }

    fn models(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.index.ask().models())
    }

    /// The bytes held, by capacity and estimate.
    fn memory_bytes(&self, py: Python<'_>) -> usize {
        py.detach(|| self.index.ask().bytes())
    }

    fn enforce_limits(&self, py: Python<'_>) {
        py.detach(|| self.index.change(Index::check_limits));
    }

    /// Panics unless every structure agrees with every other.
    fn check_integrity(&self, py: Python<'_>) {
        py.detach(|| self.index.ask().check_integrity());
    }
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FleetCore>()?;
    module.add_class::<FleetAnswer>()?;
    module.add_class::<FleetRoster>()
}
