"""Whether the values of a state fit each other: the checks that no schema can make.

Invariant: what passes here can be decided over. Each refusal is one line that names the place, the
value and a remedy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Final, TypeAlias

from kvbraid.errors import InvalidValueError, TooLargeError, shortened
from kvbraid.ids import BlockId
from kvbraid.recovery.document.reading import RunFields, StateFields
from kvbraid.resume import hash_block_size
from kvbraid.spec import SpecKind, Topology
from kvbraid.spec_mapping import topology_from_mapping

MAX_BLOCKS: Final = 1 << 26
"""The most blocks of all pools together: a decision keeps eight bytes for each, whether it has a
request or not. A pool of 16-token blocks then has room for 1 G tokens."""

MAX_BOUNDARIES: Final = 1 << 24
"""The most boundaries of one run, over all groups: 1 M tokens in 256 groups of 16-token blocks."""

_ORDER: Final = (
    ("num_prompt_tokens", "num_tokens"),
    ("num_known_tokens", "num_tokens"),
    ("the hit and the load", "num_tokens"),
    ("the first computed token", "num_processed_tokens"),
    ("num_processed_tokens", "num_computed_tokens"),
    ("num_computed_tokens", "the tokens of its longest table"),
)
"""Of two numbers of a run, the one that is never larger, and the other."""


_ALONE: Final = "a number alone does not tell which of the pools has the block"

_Fault: TypeAlias = tuple[str, object, str]
"""A place, the value there, and what was expected."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A state whose values fit each other."""

    fields: StateFields
    topology: Topology

    @property
    def total_blocks(self) -> int:
        """The blocks of all pools together, their null blocks included."""
        return self.fields.num_blocks * (1 + max(self.fields.pools, default=0))

    def block(self, group: int, block: int) -> BlockId:
        """Return the number of a group's block among those of all pools.

        A block that the pool does not have gets a number that no pool has; a group that is not
        there is taken to be in pool 0.
        """
        if block >= self.fields.num_blocks:
            return BlockId(max(self.total_blocks, block))
        pools = self.fields.pools
        pool = pools[group] if group < len(pools) else 0
        return BlockId(block + pool * self.fields.num_blocks if block else 0)


def checked(fields: StateFields) -> Checked:
    """Check everything.

    Raises:
        InvalidValueError: Values contradict each other.
        TooLargeError: A run has more than `MAX_BOUNDARIES` boundaries.
    """
    state = Checked(fields, topology_from_mapping(fields.topology))
    for path, value, expected in _faults(state):
        raise InvalidValueError(f"{path} = {shortened(value)}; expected {expected}")
    return state


def _faults(state: Checked) -> Iterator[_Fault]:
    """Yield what is wrong; each check relies on those before it."""
    yield from _of_pools(state)
    yield from _of_former(state)
    seen = set[int]()
    for i, run in enumerate(state.fields.runs):
        path = f"runs[{i}]"
        if run.request in seen and not run.ended:
            expected = "a number of its own; give each request that goes on once"
            yield f"{path}.request", run.request, expected
        if not run.ended:
            seen.add(run.request)
        for check in _OF_RUNS:
            yield from check(state, run, path)


def _of_pools(state: Checked) -> Iterator[_Fault]:
    fields, groups, pools = state.fields, state.topology.groups, list(state.fields.pools)
    if not groups:
        yield "topology.groups", [], "at least one group; give the groups of the tables"
    if len(pools) not in {0, len(groups)}:
        expected = f"{len(groups)} numbers, one per group; leave it out if all groups share a pool"
        yield "pools", pools, expected
    if sorted(set(pools)) != list(range(len(set(pools)))):
        yield "pools", pools, "pools that are numbered from 0 on, without gaps"
    if state.total_blocks > MAX_BLOCKS:
        expected = f"at most {MAX_BLOCKS} in all pools together; give the pool its real size"
        yield "num_blocks", fields.num_blocks, expected
    for group, block in (*fields.busy.group_blocks, *((0, b) for b in fields.busy.blocks)):
        if group >= len(groups) or block >= fields.num_blocks:
            yield "busy", (group, block), "a group and a block of its pool; leave it out"
    if len(set(pools)) > 1:
        for path, blocks in (("failures", fields.failures.blocks), ("busy", fields.busy.blocks)):
            if blocks:
                pairs = f"report (group, block) pairs in {path}.group_blocks"
                places = " or places in failures.places" if path == "failures" else ""
                yield f"{path}.blocks", list(blocks), f"none, as {_ALONE}; {pairs}{places}"


def _of_former(state: Checked) -> Iterator[_Fault]:
    fields = state.fields
    if fields.former and len(set(fields.pools)) > 1:
        yield "former", list(fields.former), f"none, as {_ALONE}; leave it out"
    for i, block in enumerate(fields.former):
        if block >= fields.num_blocks:
            expected = f"less than num_blocks = {fields.num_blocks}; correct one of them"
            yield f"former[{i}]", block, expected


def _of_counts(state: Checked, run: RunFields, path: str) -> Iterator[_Fault]:
    num_groups = len(state.topology.groups)
    if len(run.tables) != num_groups:
        expected = f"{num_groups}, one per group; give an empty one where the request has no block"
        yield f"{path}.tables", f"{len(run.tables)} tables", expected
    if run.states and (run.ended or len(run.states) != num_groups):
        expected = "none of a run that has ended" if run.ended else f"{num_groups}, one per group"
        yield f"{path}.states", f"{len(run.states)} lists", f"{expected}; leave them out"


def _of_numbers(state: Checked, run: RunFields, path: str) -> Iterator[_Fault]:
    hit_and_load = run.num_local_tokens + run.num_loaded_tokens
    lengths = zip(run.tables, state.topology.groups, strict=True)
    values = {
        "the hit and the load": hit_and_load,
        "the first computed token": min(hit_and_load, run.num_tokens - 1),
        "the tokens of its longest table": max(len(t) * spec.block_size for t, spec in lengths),
    }
    for smaller, larger in _ORDER:
        low, high = (values.get(name, getattr(run, name, 0)) for name in (smaller, larger))
        if low > high:
            expected = f"at most {larger}, {high}; correct one of them or leave the run out"
            yield f"{path}: {smaller}", low, expected
    unit = gcd(hash_block_size(state.topology), state.topology.alignment or 0)
    boundaries = run.num_tokens // unit * len(run.tables)
    if boundaries > MAX_BOUNDARIES:
        raise TooLargeError(
            f"{path} has {boundaries} boundaries; at most {MAX_BOUNDARIES} are read: leave it out"
        )


def _of_blocks(state: Checked, run: RunFields, path: str) -> Iterator[_Fault]:
    for place, group, block in _blocks_of(run):
        limit = state.fields.num_blocks
        if (run.ended and place.startswith("tables")) or place.startswith("given_back"):
            limit += len(state.fields.former)
        if group >= len(run.tables):
            expected = f"less than {len(run.tables)}; leave the block out"
            yield f"{path}.{place}.group", group, expected
        if block >= limit:
            expected = f"less than num_blocks = {limit}; correct num_blocks or the block"
            yield f"{path}.{place}", block, expected


def _blocks_of(run: RunFields) -> Iterator[tuple[str, int, int]]:
    for group, table in enumerate(run.tables):
        if table:
            position = max(range(len(table)), key=table.__getitem__)
            yield f"tables[{group}][{position}]", group, table[position]
    for i, found in enumerate(run.findable):
        yield from ((f"findable[{i}]", found.group, block) for block in found.blocks)
    for i, gone in enumerate(run.given_back):
        yield f"given_back[{i}]", gone.group, gone.block


def _of_states(state: Checked, run: RunFields, path: str) -> Iterator[_Fault]:
    unit = gcd(hash_block_size(state.topology), state.topology.alignment or 0)
    for group, states in enumerate(run.states):
        place = f"{path}.states[{group}]"
        if states and state.topology.groups[group].kind is not SpecKind.MAMBA:
            yield place, states, "none: the group has no states; give an empty list"
        for num_tokens, position in states:
            if not any(run.tables[group][position : position + 1]):
                expected = "a position where its table has a block; leave it out"
                yield place, (num_tokens, position), expected
            if num_tokens % unit or not num_tokens:
                expected = f"tokens that are a positive multiple of {unit}; leave it out"
                yield place, (num_tokens, position), expected


_OF_RUNS: Final = (_of_counts, _of_numbers, _of_blocks, _of_states)
