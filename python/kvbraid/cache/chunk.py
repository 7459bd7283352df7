"""Where an engine should end the next chunk of a prompt to keep a state there.

A state (mamba, linear attention) exists only where a step ends: a request can resume at a
boundary only if an earlier step ended exactly there. Invariant: while a prompt is computed, steps
end at block boundaries. A step never runs past the last boundary at which the same prompt could
resume, nor past a junction with a prefix that other requests share. These are pure functions of
numbers: nothing here knows a block, a pool or a request object. Without state groups no chunk is
shortened.

    tokens    0        64       128      192      256   300     (state blocks of 64)
    budget 200|------------------>|                             192: 200 is inside a block
    budget 999|---------------------------->|---->|             256: the prompt resumes there
    junction  |-------->|                                       another prompt branched at 64
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvbraid.cache.config import CacheConfig
from kvbraid.cache.retention import checkpoint_interval
from kvbraid.reading import POSITIVE, check_fields, whole
from kvbraid.spec import EngineDialect, SpecKind, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRules:
    """The properties of a cache and its engine that decide where chunks end. Sizes in tokens.

    block_size             steps end at its multiples; 0: no state groups, no chunk is shortened
    checkpoint_size        the same prompt resumes at the last of its multiples
    alignment              hits end at its multiples if there are no partial hits
    hash_block_size        hits end at its multiples if there are partial hits
    partial_hits           whether the end of a prompt is kept at hash granularity too
    eagle                  a draft head drops a block of every hit: states are kept one earlier
    partial_junctions      stop at a junction inside a block too (needs partial hits)
    checkpoint_alignment   the backend can save one state inside a chunk, a multiple of this many
                           tokens after its start, so no chunk needs to stop for that state;
                           None: the backend cannot
    max_chunk_tokens       the largest budget that a step can ever have; None: the current one
    interval               steps also end at its multiples, for checkpoints there; 0: no such ends
    """

    block_size: int
    checkpoint_size: int
    alignment: int
    hash_block_size: int
    partial_hits: bool = False
    eagle: bool = False
    partial_junctions: bool = False
    checkpoint_alignment: int | None = None
    max_chunk_tokens: int | None = None
    interval: int = 0

    def __post_init__(self) -> None:
        check_fields(self, _RULES, prefix="")

    def plan(self, position: "Position") -> int:
        """Return how many tokens to compute now: the budget, or fewer to keep a state.

        0 means that the budget does not reach the next block boundary: the request waits for a
        step with a larger budget.
        """
        start, end = position.start, position.start + position.budget
        if not self.block_size or start >= position.prefill_end:
            return position.budget
        is_last = end >= position.prefill_end
        if not is_last:
            end = _whole_blocks(self, start, end)
        stops = [_junction_stop(self, position)] if start < position.junction < end else []
        if not (is_last and _saves_inside(self, position)):
            stops += _state_stops(self, position)
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a request stands, and what its engine would compute next if nothing clipped it.

    `start` counts the computed tokens, hits included. `num_tokens` counts the prompt and all
    output so far. `junction` comes from the match; 0 means that there is none. `budget` is what is
    left of the step's tokens, or of the request's (draft tokens included), whichever is less.
    `stops` are further positions at which a state is worth keeping.
    """

    start: int
    num_prompt_tokens: int
    num_tokens: int
    budget: int
    junction: int = 0
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        least = min(
            self.start, self.num_prompt_tokens, self.num_tokens, self.budget, self.junction
        )
        if least < 0:  # Asked once, as this runs in every step.
            check_fields(self, _POSITION, prefix="")

    @property
    def prefill_end(self) -> int:
        """Where decoding begins; a preempted request computes its output again like a prompt."""
        return max(self.num_prompt_tokens, self.num_tokens - 1)


def chunk_rules(
    topology: Topology,
    *,
    dialect: EngineDialect = EngineDialect.PURE,
    max_chunk_tokens: int | None = None,
    checkpoint_alignment: int | None = None,
    partial_junctions: bool = False,
    interval: int = 0,
) -> ChunkRules:
    """Derive the rules from the groups; the other arguments are as in `ChunkRules`.

    Steps end where every state group has a block boundary, and the last of these steps ends where
    a hit can end. In the vLLM dialect both sizes are the smallest block of all cacheable groups,
    even if the blocks of the state groups are larger.
    """
    cacheable = [group for group in topology.groups if group.prefix_cacheable]
    states = [group.block_size for group in cacheable if group.kind is SpecKind.MAMBA]
    sizes = [group.block_size for group in cacheable] or [1]
    alignment = math.lcm(*sizes, topology.alignment or 1)
    is_vllm = dialect is EngineDialect.VLLM
    block_size = (min(sizes) if is_vllm else math.lcm(*states)) if states else 0
    hash_block_size = topology.hash_block_size or math.gcd(*sizes)
    return ChunkRules(
        block_size=block_size,
        checkpoint_size=block_size if is_vllm and states else alignment,
        alignment=alignment,
        hash_block_size=hash_block_size,
        partial_hits=bool(topology.partial_hits) and hash_block_size < alignment,
        eagle=any(group.eagle for group in cacheable),
        partial_junctions=partial_junctions,
        max_chunk_tokens=max_chunk_tokens,
        interval=interval,
        checkpoint_alignment=checkpoint_alignment,
    )


def rules_of(config: CacheConfig, *, max_chunk_tokens: int | None = None) -> ChunkRules:
    """Derive the rules of a cache from its configuration."""
    return chunk_rules(
        config.topology,
        dialect=config.dialect,
        max_chunk_tokens=max_chunk_tokens,
        checkpoint_alignment=config.checkpoint_alignment,
        partial_junctions=config.partial_junctions,
        interval=checkpoint_interval(config.retention),
    )


def _whole_blocks(rules: ChunkRules, start: int, end: int) -> int:
    """The last block boundary up to `end`. A chunk ends inside a block only if the block is larger
    than any step: such a chunk's state is private to the request."""
    boundary = end // rules.block_size * rules.block_size
    largest = end - start if rules.max_chunk_tokens is None else rules.max_chunk_tokens
    return boundary if boundary > start or rules.block_size <= largest else end


def _state_stops(rules: ChunkRules, position: Position) -> Iterator[int]:
    """The positions at which a step has to end; some may lie outside the step."""
    start, block_size = position.start, rules.block_size
    if start % block_size:
        yield (start // block_size + 1) * block_size
    if rules.interval:
        yield (start // rules.interval + 1) * rules.interval
    yield from (stop // block_size * block_size for stop in position.stops)
    last = _resume_boundary(rules, position.num_tokens, rules.checkpoint_size)
    yield last
    if rules.partial_hits:
        tail = _resume_boundary(rules, position.num_prompt_tokens, rules.hash_block_size)
        if last < tail < position.num_prompt_tokens:
            yield tail


def _junction_stop(rules: ChunkRules, position: Position) -> int:
    """The junction, or the block boundary before it if only whole blocks are kept."""
    start, junction = position.start, position.junction
    if rules.partial_junctions and junction <= position.num_prompt_tokens:
        return junction
    return start + (junction - start) // rules.block_size * rules.block_size


def _resume_boundary(rules: ChunkRules, num_tokens: int, size: int) -> int:
    """The largest multiple of `size` at which the same tokens would resume. It leaves at least one
    token to compute, or as many as a draft head drops."""
    left = size if rules.eagle else 1
    return max(0, num_tokens - left) // size * size


def _saves_inside(rules: ChunkRules, position: Position) -> bool:
    """Whether the step that ends the prompt can also save the state at the last resume boundary.

    The step must start on a hash boundary, the boundary must be a multiple of
    `checkpoint_alignment` after that start, and there must be a block for the state between the
    one that the step reads from and the one that it ends in."""
    if rules.checkpoint_alignment is None:
        return False
    start, end = position.start, position.start + position.budget
    size = rules.hash_block_size if rules.partial_hits else rules.alignment
    saved = _resume_boundary(rules, position.prefill_end, size)
    return (
        start % rules.hash_block_size == 0
        and -(-end // rules.block_size) - 2 > (start - 1) // rules.block_size
        and start + rules.hash_block_size <= saved < end
        and (saved - start) % rules.checkpoint_alignment == 0
    )


_RULES: Final = {
    **dict.fromkeys(("checkpoint_size", "alignment", "hash_block_size"), POSITIVE),
    **dict.fromkeys(("block_size", "interval"), whole()),
    **dict.fromkeys(("checkpoint_alignment", "max_chunk_tokens"), POSITIVE.or_none()),
}
_POSITION: Final = dict.fromkeys(
    ("start", "num_prompt_tokens", "num_tokens", "budget", "junction"), whole()
)
