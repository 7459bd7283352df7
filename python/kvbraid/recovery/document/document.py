"""A recovery's state as JSON: what a scheduler dumps, and `kvbraid recover --explain` reads.

Invariant: `read` takes what `write` gives, and both stand for the same decision. What is read is
checked as a whole, so a decision over it cannot fail. Blocks may be those of several pools; here
they have one numbering, pool after pool:

```text
pool 0: 1 ... n-1 | pool 1: n+1 ... 2n-1 | ...        n = num_blocks; 0 stays the null block
```

Nothing here opens a file.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

import msgspec

from kvbraid.ids import BlockId
from kvbraid.loads import Cause, Failures, GroupBlock, Record
from kvbraid.recovery.decision.decide import decide
from kvbraid.recovery.decision.plan import RecoveryPlan
from kvbraid.recovery.decision.policy import Policy
from kvbraid.recovery.decision.run import GivenBack, Run
from kvbraid.recovery.decision.snapshot import HeldState, Place, RunTables, Snapshot
from kvbraid.recovery.document.checks import Checked, checked
from kvbraid.recovery.document.reading import (
    BusyFields,
    CauseFields,
    FailureFields,
    FindableFields,
    GivenBackFields,
    PlacesFields,
    RunFields,
    StateFields,
    decode,
)
from kvbraid.spec import Topology

_NUMBERS: Final = [name for name in Run._fields if name.startswith("num_")]
_OWN_FORM: Final = frozenset({"groups"})


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything that one decision was made from.

    Attributes:
        snapshot: The tables of all runs that go on.
        runs: All runs, those that have ended too.
        failures: What was reported.
        busy: Blocks that a transfer may still write.
        policy: The policy at that time.
        pools: The pool of each group; empty if all share one.
        former: As in `kvbraid.recovery.assess`; only if all groups share a pool.
    """

    snapshot: Snapshot
    runs: Sequence[Run]
    failures: Failures
    busy: Collection[BlockId] = ()
    policy: Policy = Policy.RECOMPUTE
    pools: Sequence[int] = ()
    former: Sequence[BlockId] = ()

    def decide(self, *, max_refusals: int = 0) -> RecoveryPlan:
        """Decide again: from the same state, the plan is the same."""
        return decide(
            self.snapshot,
            self.runs,
            self.failures,
            busy=self.busy,
            policy=self.policy,
            max_refusals=max_refusals,
            former=self.former,
        )

    @property
    def num_blocks(self) -> int:
        """How many blocks each pool has, its null block included."""
        return self.snapshot.num_blocks // (1 + max(self.pools, default=0))

    def in_its_pool(self, block: BlockId) -> BlockId:
        """Return the number of a block in its own pool, as its engine knows it."""
        has_former = block >= self.snapshot.num_blocks
        return block if has_former else BlockId(block % self.num_blocks)


# Reading.


def read(data: bytes) -> State:
    """Read a state.

    Raises:
        InvalidValueError: It is not JSON, or a value fits neither the schema nor other values; the
            message is one line that names the value and a remedy.
        TooLargeError: It has more bytes or boundaries than are read.
    """
    found = checked(decode(data))
    runs = found.fields.runs
    return State(
        snapshot=Snapshot(
            topology=found.topology,
            num_blocks=found.total_blocks,
            tables=_all_tables(found),
        ),
        runs=[_run(found, run) for run in runs],
        failures=_failures(found, found.fields.failures),
        busy=[
            *map(BlockId, found.fields.busy.blocks),
            *(found.block(*pair) for pair in found.fields.busy.group_blocks),
        ],
        policy=Policy(found.fields.policy),
        pools=found.fields.pools,
        former=[BlockId(block) for block in found.fields.former],
    )


def _all_tables(found: Checked) -> dict[int, RunTables]:
    tables: dict[int, RunTables] = {}
    for run in found.fields.runs:
        if not run.ended or run.findable:
            tables[run.request] = _tables(found, run).joined(tables.get(run.request))
    return tables


def _tables(found: Checked, run: RunFields) -> RunTables:
    return RunTables(
        blocks=[[] for _ in run.tables] if run.ended else _blocks(found, run),
        states=[[HeldState(*state) for state in states] for states in run.states]
        or [[] for _ in run.tables],
        findable={
            Place(each.group, each.position): [found.block(each.group, b) for b in each.blocks]
            for each in run.findable
        },
    )


def _blocks(found: Checked, run: RunFields) -> list[list[BlockId]]:
    return [[found.block(g, block) for block in table] for g, table in enumerate(run.tables)]


def _run(found: Checked, run: RunFields) -> Run:
    return Run(
        request=run.request,
        **{name: getattr(run, name) for name in _NUMBERS},
        delays_commit=run.delays_commit,
        given_back=[
            GivenBack(each.group, each.position, found.block(each.group, each.block), each.copied)
            for each in run.given_back
        ],
        ended_tables=_blocks(found, run) if run.ended else None,
    )


def _failures(found: Checked, given: FailureFields) -> Failures:
    places: dict[int, dict[int, list[int]]] = {}
    for each in given.places:
        groups = places.setdefault(each.request, {})
        groups.setdefault(each.group, []).extend(each.positions)
    return Failures(
        places=places,
        group_blocks=[GroupBlock(g, found.block(g, block)) for g, block in given.group_blocks],
        blocks=[BlockId(block) for block in given.blocks],
        requests=given.requests,
        contents=[GroupBlock(g, found.block(g, block)) for g, block in given.contents],
        causes={
            Record(each.tier, bytes.fromhex(each.key), each.foreign): Cause(each.cause)
            for each in given.causes
        },
    )


# Writing.


def write(state: State) -> bytes:
    """Return the state as one line of JSON."""
    tables = state.snapshot.tables
    document = StateFields(
        version=1,
        topology=_as_mapping(state.snapshot.topology),
        num_blocks=state.num_blocks,
        pools=tuple(state.pools),
        former=tuple(state.former),
        runs=tuple(_run_fields(state, run, tables.get(run.request)) for run in state.runs),
        failures=_failure_fields(state, state.failures),
        busy=_busy_fields(state),
        policy=state.policy.value,
    )
    return msgspec.json.encode(document) + b"\n"


def _as_mapping(topology: Topology) -> dict[str, Any]:
    """The fields that differ from their defaults, as `topology_from_mapping` reads them."""
    groups = [_fields_of(group) for group in topology.groups]
    return {"groups": groups, **_fields_of(topology)}


def _fields_of(spec: Any) -> dict[str, Any]:  # noqa: ANN401 - a topology or one of its groups
    return {
        field.name: value.value if isinstance(value, Enum) else value
        for field in fields(spec)
        if (value := getattr(spec, field.name)) != field.default and field.name not in _OWN_FORM
    }


def _run_fields(state: State, run: Run, tables: RunTables | None) -> RunFields:
    blocks = run.ended_tables
    if blocks is None:
        assert tables is not None, f"request {run.request} has no tables"
        blocks = tables.blocks
    findable: Mapping[Place, Sequence[BlockId]] = {} if tables is None else tables.findable
    return RunFields(
        request=run.request,
        **{name: getattr(run, name) for name in _NUMBERS},
        delays_commit=run.delays_commit,
        tables=tuple(tuple(map(state.in_its_pool, table)) for table in blocks),
        states=()
        if tables is None or not any(tables.states)
        else tuple(tuple((s.num_tokens, s.position) for s in row) for row in tables.states),
        findable=tuple(
            FindableFields(
                group=place.group,
                position=place.position,
                blocks=tuple(map(state.in_its_pool, found)),
            )
            for place, found in sorted(findable.items())
        ),
        given_back=tuple(
            GivenBackFields(
                group=gone.group,
                position=gone.position,
                block=state.in_its_pool(gone.block_id),
                copied=gone.copied,
            )
            for gone in run.given_back
        ),
        ended=run.has_ended,
    )


def _failure_fields(state: State, failures: Failures) -> FailureFields:
    return FailureFields(
        places=tuple(
            PlacesFields(request=request, group=group, positions=tuple(sorted(positions)))
            for request, groups in sorted(failures.places.items())
            for group, positions in sorted(groups.items())
        ),
        group_blocks=tuple(_pairs(state, failures.group_blocks)),
        blocks=tuple(sorted(set(failures.blocks))),
        requests=tuple(sorted(set(failures.requests))),
        contents=tuple(_pairs(state, failures.contents)),
        causes=tuple(
            CauseFields(
                tier=record.tier,
                key=record.key.hex(),
                cause=cause.value,
                foreign=record.is_foreign,
            )
            for record, cause in sorted(failures.causes.items())
        ),
    )


def _busy_fields(state: State) -> BusyFields:
    if len(set(state.pools)) < 2:
        return BusyFields(blocks=tuple(sorted(set(state.busy))))
    first = {pool: state.pools.index(pool) for pool in state.pools}
    pairs = {GroupBlock(first[block // state.num_blocks], block) for block in state.busy}
    return BusyFields(group_blocks=tuple(_pairs(state, pairs)))


def _pairs(state: State, pairs: Collection[GroupBlock]) -> Iterator[tuple[int, BlockId]]:
    for group, block in sorted(set(pairs)):
        # What no pool has is told as it came.
        known = block < state.snapshot.num_blocks
        yield group, state.in_its_pool(block) if known else block
