//! What is assessed after a load failed, read from Python objects by attribute name or position, and
//! the answer as tuples.

use kvbraid_core::blocks::BlockId;
use kvbraid_core::recovery::{
    self, Assessment, AssessmentInput, FailedPlace, Failures, GivenBack, IgnoredCounts, Refusal,
    Run, RunTables, Snapshot, State, Verdict, Why,
};
use kvbraid_core::spec::EngineDialect;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyMapping, PyTuple};

use crate::errors::to_python;
use crate::native_bytes::{Column, native_bytes};
use crate::topology::TopologyArg;

/// A request, or `u64::MAX` for a number that is none.
struct RequestNumber(u64);

impl FromPyObject<'_, '_> for RequestNumber {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let exact: PyResult<u64> = number.extract();
        match exact {
            Err(error) if error.is_instance_of::<PyOverflowError>(number.py()) => {
                Ok(Self(u64::MAX))
            }
            other => other.map(Self),
        }
    }
}

/// A block, a group or a position, or `u32::MAX` for a number that is none.
#[derive(Clone, Copy)]
pub(crate) struct Number(u32);

impl FromPyObject<'_, '_> for Number {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let RequestNumber(exact) = number.extract()?;
        Ok(Self(u32::try_from(exact).unwrap_or(u32::MAX)))
    }
}

/// The members of any iterable.
pub(crate) struct Each<V>(Vec<V>);

impl<'py, V> FromPyObject<'_, 'py> for Each<V>
where
    V: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(all: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let members = all.try_iter()?;
        let members = members.map(|member| member?.as_borrowed().extract());
        Ok(Self(members.collect::<PyResult<_>>()?))
    }
}

impl Each<Number> {
    fn blocks(self) -> Vec<BlockId> {
        self.0.into_iter().map(|Number(id)| BlockId(id)).collect()
    }
}

/// The items of any mapping.
pub(crate) struct Items<K, V>(pub Vec<(K, V)>);

impl<'py, K, V> FromPyObject<'_, 'py> for Items<K, V>
where
    K: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    V: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(mapping: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let items = mapping.cast::<PyMapping>()?.items()?;
        let items = items.iter().map(|item| {
            let key = item.get_item(0)?.as_borrowed().extract()?;
            Ok((key, item.get_item(1)?.as_borrowed().extract()?))
        });
        Ok(Self(items.collect::<PyResult<_>>()?))
    }
}

/// Anything; it is not read.
struct Unread;

impl FromPyObject<'_, '_> for Unread {
    type Error = PyErr;

    fn extract(_: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Ok(Self)
    }
}

/// `kvbraid.recovery.Run`, by position, because hundreds are read at once: the request; the
/// tokens, those of the prompt, the known, local, loaded, processed and computed ones; whether it
/// delays its commit; what it has given back; and the tables of an ended run.
#[derive(FromPyObject)]
pub(crate) struct RunArg(
    u64,
    u32,
    Unread,
    u32,
    u32,
    u32,
    u32,
    u32,
    bool,
    Vec<(u32, u32, u32, bool)>,
    Option<Vec<Each<Number>>>,
);

impl RunArg {
    fn decode(self) -> Run {
        let given_back = |(group, position, block, copied)| GivenBack {
            group,
            position,
            block: BlockId(block),
            copied,
        };
        let tables = |tables: Vec<Each<Number>>| tables.into_iter().map(Each::blocks).collect();
        let Self(
            request,
            num_tokens,
            _,
            num_known_tokens,
            num_local_tokens,
            num_loaded_tokens,
            num_processed_tokens,
            num_computed_tokens,
            delays_commit,
            gone,
            ended,
        ) = self;
        Run {
            request,
            num_tokens,
            num_known_tokens,
            num_local_tokens,
            num_loaded_tokens,
            num_processed_tokens,
            num_computed_tokens,
            delays_commit,
            given_back: gone.into_iter().map(given_back).collect(),
            ended_tables: ended.map(tables),
        }
    }
}

pub(crate) fn runs(runs: Vec<RunArg>) -> Vec<Run> {
    runs.into_iter().map(RunArg::decode).collect()
}

/// `kvbraid.loads.Failures`.
#[derive(FromPyObject)]
pub(crate) struct FailuresArg {
    places: Items<RequestNumber, Items<Number, Each<Number>>>,
    group_blocks: Each<(Number, Number)>,
    blocks: Each<Number>,
    requests: Each<RequestNumber>,
    contents: Each<(Number, Number)>,
}

/// Blocks in any collection.
pub(crate) type BlocksArg = Each<Number>;

impl FailuresArg {
    fn decode(self) -> Failures {
        let mut places = Vec::new();
        for (RequestNumber(request), groups) in self.places.0 {
            for (Number(group), positions) in groups.0 {
                places.extend(positions.0.into_iter().map(|Number(position)| FailedPlace {
                    request,
                    group,
                    position,
                }));
            }
        }
        let pairs = |pairs: Each<(Number, Number)>| {
            let pairs = pairs.0.into_iter();
            pairs
                .map(|(group, block)| (BlockId(block.0), group.0))
                .collect()
        };
        Failures {
            places,
            group_blocks: pairs(self.group_blocks),
            contents: pairs(self.contents),
            blocks: self.blocks.blocks(),
            requests: self
                .requests
                .0
                .into_iter()
                .map(|request| request.0)
                .collect(),
        }
    }
}

/// What is asked besides the runs.
pub(crate) fn input(
    failures: FailuresArg,
    busy: BlocksArg,
    max_refusals: usize,
    former: BlocksArg,
) -> AssessmentInput {
    AssessmentInput {
        former: former.blocks(),
        failures: failures.decode(),
        busy: busy.blocks(),
        max_refusals,
    }
}

/// `kvbraid.recovery.RunTables`.
#[derive(FromPyObject)]
struct TablesArg {
    blocks: Vec<Each<Number>>,
    states: Vec<Vec<(u32, u32)>>,
    findable: Items<(u32, u32), Each<Number>>,
}

impl TablesArg {
    fn decode(self) -> RunTables {
        let state = |(num_tokens, position)| State {
            num_tokens,
            position,
        };
        let mut findable = Vec::new();
        for ((group, position), blocks) in self.findable.0 {
            findable.extend(
                blocks
                    .blocks()
                    .into_iter()
                    .map(|block| (group, position, block)),
            );
        }
        let states = self.states.into_iter();
        RunTables {
            blocks: self.blocks.into_iter().map(Each::blocks).collect(),
            states: states
                .map(|all| all.into_iter().map(state).collect())
                .collect(),
            findable,
        }
    }
}

/// `kvbraid.recovery.Snapshot`.
#[derive(FromPyObject)]
struct SnapshotArg {
    topology: TopologyArg,
    num_blocks: usize,
    tables: Items<u64, TablesArg>,
}

/// The boundary, the group, the position, the block and what is wrong with it.
pub(crate) type RefusalTuple = (u32, u16, u32, u32, &'static str);

pub(crate) fn refusals(refused: Vec<Refusal>) -> Vec<RefusalTuple> {
    let refusal = |refusal: Refusal| {
        let why = match refusal.why {
            Why::NotHeld => "not_held",
            Why::Bad => "bad",
            Why::NotComputed => "not_computed",
        };
        let Refusal {
            boundary,
            group,
            position,
            block,
            ..
        } = refusal;
        (boundary, group, position, block.0, why)
    };
    refused.into_iter().map(refusal).collect()
}

/// The request, its first tainted token, whether garbage was handed out, the boundary, whether it
/// goes back in place, what it owns, what it waits for with the owners, its busy blocks, and the
/// refusals.
type VerdictTuple<'py> = (
    u64,
    Option<u32>,
    bool,
    u32,
    bool,
    Bound<'py, PyTuple>,
    Bound<'py, PyDict>,
    Bound<'py, PyTuple>,
    Bound<'py, PyTuple>,
);

/// The tainted blocks, as a buffer of native integers of 32 bits; the verdicts; how many parts of the
/// report did not count, by reason; and who was told garbage by a run that has ended.
pub(crate) type AssessmentTuple<'py> =
    (Column<'py>, Vec<VerdictTuple<'py>>, IgnoredCounts, Vec<u64>);

fn verdict(py: Python<'_>, verdict: Verdict) -> PyResult<VerdictTuple<'_>> {
    let waits_for = verdict.waits_for.iter();
    let waits_for = waits_for.map(|(block, owner)| (block.0, *owner));
    // Most have no blocks: then all of them share one empty tuple.
    let numbers = |blocks: Vec<BlockId>| PyTuple::new(py, blocks.into_iter().map(|block| block.0));
    Ok((
        verdict.request,
        verdict.first_tainted,
        verdict.handed_out,
        verdict.resume,
        verdict.in_place,
        numbers(verdict.owner_of)?,
        waits_for.into_py_dict(py)?,
        numbers(verdict.busy)?,
        PyTuple::new(py, refusals(verdict.refused))?,
    ))
}

pub(crate) fn assessment(py: Python<'_>, found: Assessment) -> PyResult<AssessmentTuple<'_>> {
    let tainted = found.tainted.iter().map(|block| block.0.to_ne_bytes());
    let verdicts = found.verdicts.into_iter();
    Ok((
        native_bytes(py, tainted)?,
        verdicts
            .map(|each| verdict(py, each))
            .collect::<PyResult<_>>()?,
        found.ignored,
        found.told,
    ))
}

#[pyfunction]
fn assess_snapshot(
    py: Python<'_>,
    snapshot: SnapshotArg,
    runs: Vec<RunArg>,
    failures: FailuresArg,
    busy: BlocksArg,
    max_refusals: usize,
    former: BlocksArg,
) -> PyResult<AssessmentTuple<'_>> {
    let topology = snapshot
        .topology
        .decode(EngineDialect::PURE)
        .map_err(to_python)?;
    let tables = snapshot.tables.0.into_iter();
    let snapshot = Snapshot {
        topology,
        num_blocks: snapshot.num_blocks,
        tables: tables
            .map(|(request, tables)| (request, tables.decode()))
            .collect(),
    };
    let (runs, input) = (
        self::runs(runs),
        input(failures, busy, max_refusals, former),
    );
    py.detach(|| recovery::assess(&snapshot, &runs, &input))
        .map_err(to_python)
        .and_then(|found| assessment(py, found))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(assess_snapshot, module)?)
}
