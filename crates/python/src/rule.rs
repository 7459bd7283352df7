//! The resume rule for callers that have words themselves: tests, and the rule for one holder.

use kvbraid_core::Error;
use kvbraid_core::rule::{self, HOLDERS, Holdings, Query, Scratch, Unknown};
use kvbraid_core::spec::Topology;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::errors::to_python;
use crate::topology::{self, GroupArg, TopologyArg};

/// `kvbraid.resume.HeldWords`.
#[derive(FromPyObject)]
struct HeldArg {
    unit: u32,
    whole: Vec<Vec<u64>>,
    partial: Vec<Vec<u64>>,
}

/// `kvbraid.resume.Query`.
#[derive(FromPyObject)]
struct QueryArg {
    num_tokens: u32,
    mask: u64,
    strict: bool,
}

impl QueryArg {
    fn decode(self) -> Query {
        let unknown = if self.strict {
            Unknown::Strict
        } else {
            Unknown::Lax
        };
        Query {
            num_tokens: self.num_tokens,
            mask: self.mask,
            unknown,
        }
    }
}

/// Calls `run` with everything decoded, without the GIL.
fn evaluate<T: Send>(
    py: Python<'_>,
    topology: TopologyArg,
    dialect: Vec<PyBackedStr>,
    held: HeldArg,
    query: QueryArg,
    run: impl FnOnce(&Topology, &Holdings, Query, &mut Scratch) -> T + Send,
) -> PyResult<T> {
    let dialect = topology::dialect(dialect).map_err(to_python)?;
    let topology = topology.decode(dialect).map_err(to_python)?;
    let HeldArg {
        unit,
        whole,
        partial,
    } = held;
    rule::check_unit(&topology, unit).map_err(to_python)?;
    Ok(py.detach(|| {
        let whole: Vec<&[u64]> = whole.iter().map(Vec::as_slice).collect();
        let partial: Vec<&[u64]> = partial.iter().map(Vec::as_slice).collect();
        let held = Holdings {
            unit,
            whole: &whole,
            partial: &partial,
        };
        run(&topology, &held, query.decode(), &mut Scratch::default())
    }))
}

#[pyfunction]
fn resume(
    py: Python<'_>,
    topology: TopologyArg,
    dialect: Vec<PyBackedStr>,
    held: HeldArg,
    query: QueryArg,
) -> PyResult<Vec<u32>> {
    evaluate(
        py,
        topology,
        dialect,
        held,
        query,
        |topology, held, query, scratch| rule::resume(topology, held, query, scratch).to_vec(),
    )
}

#[pyfunction]
fn resume_present(
    py: Python<'_>,
    topology: TopologyArg,
    dialect: Vec<PyBackedStr>,
    held: HeldArg,
    query: QueryArg,
) -> PyResult<Vec<u32>> {
    evaluate(
        py,
        topology,
        dialect,
        held,
        query,
        |topology, held, query, scratch| rule::present(topology, held, query, scratch).to_vec(),
    )
}

/// One list of boundaries for the lowest holder in the mask; `None` if the group never restricts a
/// prefix.
#[pyfunction]
fn resume_accepted(
    py: Python<'_>,
    topology: TopologyArg,
    dialect: Vec<PyBackedStr>,
    held: HeldArg,
    query: QueryArg,
    group: usize,
) -> PyResult<Option<Vec<u32>>> {
    if query.mask == 0 {
        let text = "mask 0 names no holder; set one bit".to_owned();
        return Err(to_python(Error::InvalidValue(text)));
    }
    let bit = query.mask.trailing_zeros();
    evaluate(
        py,
        topology,
        dialect,
        held,
        query,
        |topology, held, query, scratch| rule::accepted(topology, held, query, group, bit, scratch),
    )
}

/// For each holder, the group and boundary that end its prefix, given the answers of `resume`.
#[pyfunction]
fn resume_limiting(
    py: Python<'_>,
    topology: TopologyArg,
    dialect: Vec<PyBackedStr>,
    held: HeldArg,
    query: QueryArg,
    answers: [u32; HOLDERS],
) -> PyResult<Vec<Option<(usize, u32)>>> {
    evaluate(
        py,
        topology,
        dialect,
        held,
        query,
        |topology, held, query, scratch| {
            let limits = rule::limiting(topology, held, query, &answers, scratch);
            limits
                .iter()
                .map(|l| l.map(|l| (l.group, l.boundary)))
                .collect()
        },
    )
}

/// The first block that a boundary needs of a group, and the block after the last one.
#[pyfunction]
fn needed_blocks(group: GroupArg, boundary: u32) -> PyResult<(u32, u32)> {
    let group = group.decode().map_err(to_python)?;
    group.validate().map_err(to_python)?;
    rule::check_boundary(&group, boundary).map_err(to_python)?;
    let blocks = rule::needed(&group, boundary);
    Ok((blocks.start, blocks.end))
}

/// The first token that a token reads of a group; the token itself if it reads none.
#[pyfunction]
fn first_read(group: GroupArg, token: u32) -> PyResult<u32> {
    let group = group.decode().map_err(to_python)?;
    group.validate().map_err(to_python)?;
    Ok(rule::first_read(&group, token))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(resume, module)?)?;
    module.add_function(wrap_pyfunction!(resume_present, module)?)?;
    module.add_function(wrap_pyfunction!(resume_accepted, module)?)?;
    module.add_function(wrap_pyfunction!(resume_limiting, module)?)?;
    module.add_function(wrap_pyfunction!(needed_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(first_read, module)?)
}
