"""Whether the values of a state fit each other: the checks that no schema can make.

Invariant: what passes here can be decided over. Each refusal is one line that names the place, the
value and a remedy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Final

from kvbraid.errors import InvalidValueError, TooLargeError, shown
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
    _check_pools(state)
    _check_former(state)
    seen = set[int]()
    for i, run in enumerate(fields.runs):
        path = f"runs[{i}]"
        if run.request in seen and not run.ended:
            expected = "a number of its own; give each request that goes on once"
            raise _wrong(f"{path}.request", run.request, expected)
        if not run.ended:
            seen.add(run.request)
        for check in _OF_RUNS:
            check(state, run, path)
    return state


def _check_pools(state: Checked) -> None:
    fields, groups = state.fields, state.topology.groups
    if not groups:
        raise _wrong("topology.groups", [], "at least one group; give the groups of the tables")
    if len(fields.pools) not in {0, len(groups)}:
        raise _wrong(
            "pools",
            list(fields.pools),
            f"{len(groups)} numbers, one per group; leave it out if all groups share a pool",
        )
    if sorted(set(fields.pools)) != list(range(len(set(fields.pools)))):
        raise _wrong(
            "pools", list(fields.pools), "pools that are numbered from 0 on, without gaps"
        )
    if state.total_blocks > MAX_BLOCKS:
        expected = f"at most {MAX_BLOCKS} in all pools together; give the pool its real size"
        raise _wrong("num_blocks", fields.num_blocks, expected)
    for group, block in (*fields.busy.group_blocks, *((0, b) for b in fields.busy.blocks)):
        if group >= len(groups) or block >= fields.num_blocks:
            expected = "a group and a block of its pool; leave it out"
            raise _wrong("busy", (group, block), expected)
    if len(set(fields.pools)) > 1:
        for path, blocks in (("failures", fields.failures.blocks), ("busy", fields.busy.blocks)):
            if blocks:
                raise _wrong(
                    f"{path}.blocks",
                    list(blocks),
                    "none, as a number alone does not tell which of the pools has the block; "
                    f"report (group, block) pairs in {path}.group_blocks"
                    + (" or places in failures.places" if path == "failures" else ""),
                )


def _check_former(state: Checked) -> None:
    fields = state.fields
    if fields.former and len(set(fields.pools)) > 1:
        expected = "none, as a number alone does not tell which of the pools had the block"
        raise _wrong("former", list(fields.former), expected)
    for i, block in enumerate(fields.former):
        if block >= fields.num_blocks:
            expected = f"less than num_blocks = {fields.num_blocks}; correct one of them"
            raise _wrong(f"former[{i}]", block, expected)


def _check_counts(state: Checked, run: RunFields, path: str) -> None:
    groups = state.topology.groups
    if len(run.tables) != len(groups):
        raise _wrong(
            f"{path}.tables",
            f"{len(run.tables)} tables",
            f"{len(groups)}, one per group; give an empty one where the request has no block",
        )
    if run.states and (run.ended or len(run.states) != len(groups)):
        expected = "none of a run that has ended" if run.ended else f"{len(groups)}, one per group"
        raise _wrong(f"{path}.states", f"{len(run.states)} lists", f"{expected}; leave them out")


def _check_numbers(state: Checked, run: RunFields, path: str) -> None:
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
            raise InvalidValueError(
                f"{path}: {smaller} = {low}; expected at most {larger}, {high}; correct one of "
                "them or leave the run out"
            )
    unit = gcd(hash_block_size(state.topology), state.topology.alignment or 0)
    boundaries = run.num_tokens // unit * len(run.tables)
    if boundaries > MAX_BOUNDARIES:
        msg = (
            f"{path} has {boundaries} boundaries; at most {MAX_BOUNDARIES} are read: leave it out"
        )
        raise TooLargeError(msg)


def _check_blocks(state: Checked, run: RunFields, path: str) -> None:
    for place, group, block in _blocks_of(run):
        limit = state.fields.num_blocks
        if (run.ended and place.startswith("tables")) or place.startswith("given_back"):
            limit += len(state.fields.former)
        if group >= len(run.tables):
            expected = f"less than {len(run.tables)}; leave the block out"
            raise _wrong(f"{path}.{place}.group", group, expected)
        if block >= limit:
            expected = f"less than num_blocks = {limit}; correct num_blocks or the block"
            raise _wrong(f"{path}.{place}", block, expected)


def _blocks_of(run: RunFields) -> Iterator[tuple[str, int, int]]:
    for group, table in enumerate(run.tables):
        if table:
            position = max(range(len(table)), key=table.__getitem__)
            yield f"tables[{group}][{position}]", group, table[position]
    for i, found in enumerate(run.findable):
        yield from ((f"findable[{i}]", found.group, block) for block in found.blocks)
    for i, gone in enumerate(run.given_back):
        yield f"given_back[{i}]", gone.group, gone.block


def _check_states(state: Checked, run: RunFields, path: str) -> None:
    unit = gcd(hash_block_size(state.topology), state.topology.alignment or 0)
    for group, states in enumerate(run.states):
        place = f"{path}.states[{group}]"
        if states and state.topology.groups[group].kind is not SpecKind.MAMBA:
            raise _wrong(place, states, "none: the group has no states; give an empty list")
        for num_tokens, position in states:
            if not any(run.tables[group][position : position + 1]):
                expected = "a position where its table has a block; leave it out"
                raise _wrong(place, (num_tokens, position), expected)
            if num_tokens % unit or not num_tokens:
                expected = f"tokens that are a positive multiple of {unit}; leave it out"
                raise _wrong(place, (num_tokens, position), expected)


_OF_RUNS: Final[tuple[Callable[[Checked, RunFields, str], None], ...]] = (
    _check_counts,
    _check_numbers,
    _check_blocks,
    _check_states,
)


def _wrong(path: str, value: object, expected: str) -> InvalidValueError:
    return InvalidValueError(f"{path} = {shown(value)}; expected {expected}")
