"""Where an engine ends the next chunk of a prompt, so that a state can be kept there.

A state (mamba, linear attention) exists only where a step ends: whoever wants to resume at a
boundary needs a step that ended exactly there. The law: while a prompt is computed, steps end at
block boundaries, and never run past the last boundary at which the same prompt could resume, nor
past a junction with a prefix that other requests share. Pure functions of numbers; nothing here
knows a block, a pool or a request object, and a cache without states is never clipped.

    tokens    0        64       128      192      256   300     (state blocks of 64)
    budget 200|------------------>|                             192, for 200 is inside a block
    budget 999|---------------------------->|---->|             256: the prompt resumes there
    junction  |-------->|                                       another prompt branched at 64
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvbraid.errors import InvalidValueError
from kvbraid.spec import EngineDialect, SpecKind, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRules:
    """What of a cache and of the engine around it decides where chunks end. Sizes in tokens.

    block_size             steps end at its multiples; 0: no state groups, nothing is clipped
    checkpoint_size        the same prompt resumes at the last of its multiples
    alignment              boundaries of hits where there are no partial hits
    hash_block_size        boundaries of hits where there are
    partial_hits           whether the end of a prompt is kept at hash granularity too
    eagle                  a draft head drops a block of every hit: states are kept one earlier
    partial_junctions      stop at a junction inside a block, too (needs partial hits)
    checkpoint_alignment   a backend that saves one state inside a chunk, this far from its start
                           or a multiple: no stop at the end of the prompt; None: it cannot
    max_chunk_tokens       the largest budget a step can ever have; None: the one it has
    interval               steps end at its multiples too, for checkpoints there; 0: they need not
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
        for name in ("checkpoint_size", "alignment", "hash_block_size"):
            _at_least(name, getattr(self, name), 1)
        for name in ("block_size", "interval"):
            _at_least(name, getattr(self, name), 0)
        for name in ("checkpoint_alignment", "max_chunk_tokens"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, 1)

    def plan(self, position: "Position") -> int:
        """Return how many tokens to compute now: the budget, or fewer, to keep a state.

        0 says that the budget does not reach the next block boundary: the request waits for a step
        that has more.
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

    `start` counts the computed tokens, hits included; `num_tokens` the prompt and all output so
    far; `junction` is the match's, 0 for none. `budget` is what is left of the step and of the
    request (draft tokens included), whichever is less.
    """

    start: int
    num_prompt_tokens: int
    num_tokens: int
    budget: int
    junction: int = 0

    def __post_init__(self) -> None:
        for name in ("start", "num_prompt_tokens", "num_tokens", "budget", "junction"):
            _at_least(name, getattr(self, name), 0)

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
    """Derive the rules from the groups; the rest is as in `ChunkRules`.

    Steps end where every state group has a block boundary, and the last of them where a hit can
    be. The engine of the vLLM dialect takes the smallest block of all its cacheable groups for
    both, whatever the states' own is.
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
        partial_hits=topology.partial_hits and hash_block_size < alignment,
        eagle=any(group.eagle for group in cacheable),
        partial_junctions=partial_junctions,
        max_chunk_tokens=max_chunk_tokens,
        interval=interval,
        checkpoint_alignment=checkpoint_alignment,
    )


def _whole_blocks(rules: ChunkRules, start: int, end: int) -> int:
    """The last block boundary up to `end`. Only a block that no step can ever hold is taken in
    parts: their states are private to the request, until one reaches the boundary."""
    boundary = end // rules.block_size * rules.block_size
    largest = end - start if rules.max_chunk_tokens is None else rules.max_chunk_tokens
    return boundary if boundary > start or rules.block_size <= largest else end


def _state_stops(rules: ChunkRules, position: Position) -> Iterator[int]:
    """Where a step has to end whatever else it could compute; some may lie outside it."""
    start, block_size = position.start, rules.block_size
    if start % block_size:
        yield (start // block_size + 1) * block_size
    if rules.interval:
        yield (start // rules.interval + 1) * rules.interval
    last = _resume_boundary(rules, position.num_tokens, rules.checkpoint_size)
    yield last
    if rules.partial_hits:
        tail = _resume_boundary(rules, position.num_prompt_tokens, rules.hash_block_size)
        if last < tail < position.num_prompt_tokens:
            yield tail


def _junction_stop(rules: ChunkRules, position: Position) -> int:
    """The junction, or the block boundary before it where only whole blocks are kept."""
    start, junction = position.start, position.junction
    if rules.partial_junctions and junction <= position.num_prompt_tokens:
        return junction
    return start + (junction - start) // rules.block_size * rules.block_size


def _resume_boundary(rules: ChunkRules, num_tokens: int, size: int) -> int:
    """The largest multiple of `size` at which the same tokens would resume: one token is left to
    compute, or all that a draft head drops."""
    left = size if rules.eagle else 1
    return max(0, num_tokens - left) // size * size


def _saves_inside(rules: ChunkRules, position: Position) -> bool:
    """Whether the step that ends the prompt can save the state of its last resume boundary on
    the way: a backend does so at multiples of its own from a start on a hash boundary, into a
    block that is neither the one it read from nor the one it ends in."""
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


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidValueError(f"{name} is {value} tokens; expected at least {least}")
