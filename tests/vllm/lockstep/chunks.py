"""Where a prefill chunk must end so that the states it leaves behind can be found again.

A pure function of numbers: the driver's own statement of what the engine's scheduler asks of
models with states. A test holds it equal to the engine's.
"""

from dataclasses import dataclass

from tests.vllm.lockstep.configs import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """How far a request is, in tokens; `start` counts hits and loaded tokens as computed."""

    start: int
    num_tokens: int
    num_prompt_tokens: int
    junction: int

    @property
    def end(self) -> int:
        """Where prefill ends: a request that starts again computes its output once more."""
        return max(self.num_prompt_tokens, self.num_tokens - 1)


def clip(config: Config, prefill: Prefill, num_new_tokens: int) -> int:
    """Return how many of the wanted tokens the chunk may have; 0 where it cannot start yet."""
    block_size, start = config.state_block_size, prefill.start
    if block_size is None or start >= prefill.end:
        return num_new_tokens
    end = start + num_new_tokens
    if end < prefill.end:
        whole = end // block_size * block_size
        if whole > start or block_size <= _longest_chunk(config):
            end = whole
    stops = [stop for stop in _stops(config, prefill, end) if start < stop < end]
    return max(min(stops, default=end) - start, 0)


def _longest_chunk(config: Config) -> int:
    if config.long_prefill_tokens > 0:
        return min(config.token_budget, config.long_prefill_tokens)
    return config.token_budget


def _stops(config: Config, prefill: Prefill, end: int) -> list[int]:
    """Return the positions that a chunk may not run past."""
    block_size, start, junction = config.state_block_size, prefill.start, prefill.junction
    assert block_size is not None
    last = checkpoint(prefill.num_tokens, block_size, eagle=config.use_eagle)
    stops = [last]
    if start % block_size:
        stops.append((start // block_size + 1) * block_size)
    if config.partial_hits and config.hash_block_size < config.alignment:
        tail = checkpoint(
            prefill.num_prompt_tokens, config.hash_block_size, eagle=config.use_eagle
        )
        if last < tail < prefill.num_prompt_tokens:
            stops.append(tail)
    if start < junction < end:
        stops.append(start + (junction - start) // block_size * block_size)
    return stops


def checkpoint(num_tokens: int, unit: int, *, eagle: bool) -> int:
    """Return the last boundary at which a request of these tokens can be resumed.

    A token must be left to compute; a drafter takes a whole unit, which leaves tokens too.
    """
    if eagle:
        return max(num_tokens // unit * unit - unit, 0)
    return (num_tokens - 1) // unit * unit
