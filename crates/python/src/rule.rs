//! The resume rule for callers who hold words themselves: tests, and the rule for one holder.

use kvbraid_core::Error;
use kvbraid_core::rule::{self, HOLDERS, Held, Query, Scratch, Unknown};
use kvbraid_core::spec::Topology;
use pyo3::prelude::*;

use crate::errors::to_python;
use crate::topology::{GroupTuple, TopologyTuple, decode_group};

/// unit in tokens, words of whole blocks per group, words of interior entries per group.
#[derive(FromPyObject)]
struct HeldTuple(u32, Vec<Vec<u64>>, Vec<Vec<u64>>);

/// `num_tokens`, mask, whether unknown groups need everything (else nothing).
#[derive(FromPyObject)]
struct QueryTuple(u32, u64, bool);

impl QueryTuple {
    fn decode(self) -> Query {
        let unknown = if self.2 {
            Unknown::Strict
        } else {
            Unknown::Lax
        };
        Query {
            num_tokens: self.0,
            mask: self.1,
            unknown,
        }
    }
}

/// Calls `evaluate` with everything decoded, without the GIL.
fn evaluate<T: Send>(
    py: Python<'_>,
    topology: TopologyTuple,
    held: HeldTuple,
    evaluate: impl FnOnce(&Topology, &Held, &mut Scratch) -> T + Send,
) -> PyResult<T> {
    let topology = topology.decode().map_err(to_python)?;
    let HeldTuple(unit, whole, partial) = held;
    rule::check_unit(&topology, unit).map_err(to_python)?;
    Ok(py.detach(|| {
        let whole: Vec<&[u64]> = whole.iter().map(Vec::as_slice).collect();
        let partial: Vec<&[u64]> = partial.iter().map(Vec::as_slice).collect();
        let held = Held {
            unit,
            whole: &whole,
            partial: &partial,
        };
        evaluate(&topology, &held, &mut Scratch::default())
    }))
}

#[pyfunction]
fn resume(
    py: Python<'_>,
    topology: TopologyTuple,
    held: HeldTuple,
    query: QueryTuple,
) -> PyResult<Vec<u32>> {
    let query = query.decode();
    evaluate(py, topology, held, |topology, held, scratch| {
        rule::resume(topology, held, query, scratch).to_vec()
    })
}

#[pyfunction]
fn resume_present(
    py: Python<'_>,
    topology: TopologyTuple,
    held: HeldTuple,
    query: QueryTuple,
) -> PyResult<Vec<u32>> {
    let query = query.decode();
    evaluate(py, topology, held, |topology, held, scratch| {
        rule::present(topology, held, query, scratch).to_vec()
    })
}

/// One list of boundaries for the lowest holder in the mask; `None` if the group never restricts.
#[pyfunction]
fn resume_accepted(
    py: Python<'_>,
    topology: TopologyTuple,
    held: HeldTuple,
    query: QueryTuple,
    group: usize,
) -> PyResult<Option<Vec<u32>>> {
    let query = query.decode();
    if query.mask == 0 {
        let text = "mask 0 names no holder; set one bit".to_owned();
        return Err(to_python(Error::InvalidValue(text)));
    }
    let holder = (group, query.mask.trailing_zeros());
    evaluate(py, topology, held, |topology, held, scratch| {
        rule::accepted(topology, held, query, holder, scratch)
    })
}

/// Per holder the group and boundary that end its prefix, given the answers of `resume`.
#[pyfunction]
fn resume_limiting(
    py: Python<'_>,
    topology: TopologyTuple,
    held: HeldTuple,
    query: QueryTuple,
    answers: [u32; HOLDERS],
) -> PyResult<Vec<Option<(usize, u32)>>> {
    let query = query.decode();
    evaluate(py, topology, held, |topology, held, scratch| {
        let limits = rule::limiting(topology, held, query, &answers, scratch);
        limits
            .iter()
            .map(|l| l.map(|l| (l.group, l.boundary)))
            .collect()
    })
}

/// The first block that a boundary needs of a group, and the one after the last.
#[pyfunction]
fn needed_blocks(group: GroupTuple, boundary: u32) -> PyResult<(u32, u32)> {
    let group = decode_group(group).map_err(to_python)?;
    group.validate().map_err(to_python)?;
    rule::check_boundary(&group, boundary).map_err(to_python)?;
    let blocks = rule::needed(&group, boundary);
    Ok((blocks.start, blocks.end))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(resume, module)?)?;
    module.add_function(wrap_pyfunction!(resume_present, module)?)?;
    module.add_function(wrap_pyfunction!(resume_accepted, module)?)?;
    module.add_function(wrap_pyfunction!(resume_limiting, module)?)?;
    module.add_function(wrap_pyfunction!(needed_blocks, module)?)
}
