"""Plays a trace against one engine's cache: there is no engine, no clock and no token.

Invariant: requests come one at a time. Each looks up its prompt, computes the rest in chunks that
end where states can be kept, and gives its blocks back at the end. Outputs are neither computed
nor kept (the trace shows them in the next prompt). Only one of the tokens after the last block
that the trace identifies is computed. The next turn repeats these tokens, but the trace cannot
show that, so the next turn could not use a state or window kept among them. A request that the
empty pool cannot hold is counted and left out under every policy.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, repeat
from typing import Any, Final, TypeAlias

from kvbraid.cache import CacheConfig, CacheManager, PolicyChoice, Retention
from kvbraid.errors import InvalidValueError, counted
from kvbraid.sim.one_by_one import OneByOne
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.sim.traces.prefix_hashes import PrefixHashes
from kvbraid.sim.traces.trace import Trace

CHUNK_TOKENS: Final = 8_192

Progress: TypeAlias = Callable[[int], None]  # Called with the number of requests done.
Hint: TypeAlias = bool | float | None  # Whether a later request goes on from an end; see `add`.


_TOO_MANY_BLOCKS: Final = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """How much of a trace one cache reused. Tokens of requests that were left out do not count.

    `policy_choice` says what the cache evicted first at the end; None: its policy is fixed.
    """

    num_blocks: int
    num_requests: int
    num_left_out: int
    prompt_tokens: int
    hit_tokens: int
    policy_choice: PolicyChoice | None = None

    @property
    def rate(self) -> float:
        """Share of the prompt tokens that were reused."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return all fields and the rate; `policy_choice` names the policies."""
        return {
            **asdict(replace(self, policy_choice=None)),
            "hit_rate": round(self.rate, 6),
            "policy_choice": None
            if self.policy_choice is None
            else _choice_json(self.policy_choice),
        }


def _choice_json(choice: PolicyChoice) -> dict[str, Any]:
    return {
        "policy": choice.now.name,
        "since": choice.since,
        "num_changes": choice.num_changes,
        "gains": {name: round(gain, 6) for name, gain in choice.gains.items()},
    }


def check_pool(model: SimulatedModel, num_blocks: int) -> None:
    """Refuse a pool that cannot hold anything, or has more blocks than a cache can number.

    Raises:
        InvalidValueError: The message says how much memory to give.
    """
    if not 2 <= num_blocks < _TOO_MANY_BLOCKS:
        remedy = "more" if num_blocks < 2 else "less"
        raise InvalidValueError(
            f"a pool of {counted(num_blocks, 'block')}, each of {model.block_bytes:,} bytes for "
            f"{model.name}; expected at least two, one of them the null block, and fewer than "
            f"{_TOO_MANY_BLOCKS}: give {remedy} memory"
        )


def simulate(
    trace: Trace,
    model: SimulatedModel,
    num_blocks: int,
    retention: Retention,
    *,
    hints: Sequence[Hint] = (),
    progress: Progress | None = None,
) -> HitRate:
    """Play a trace against a pool of `num_blocks` blocks.

    `hints` says of the first requests whether a later one goes on from their end.

    Raises:
        InvalidValueError: The pool cannot hold anything.
    """
    check_pool(model, num_blocks)
    cache = _Cache(model, num_blocks, retention)
    hashes = PrefixHashes(trace.block_tokens, model.hash_block_size)
    prompt_tokens = hit_tokens = num_left_out = 0
    told = chain(hints, repeat(None))
    for number, (request, hint) in enumerate(zip(trace.play(), told, strict=False), start=1):
        if cache.can_fit(request.num_tokens):
            prompt_tokens += request.num_tokens
            num_known = len(request.ids) * trace.block_tokens
            hit_tokens += cache.run(
                min(request.num_tokens, num_known + 1), hashes.of(request), hint
            )
        else:
            num_left_out += 1
        if progress is not None:
            progress(number)
    return HitRate(
        num_blocks=num_blocks,
        num_requests=trace.num_requests - num_left_out,
        num_left_out=num_left_out,
        prompt_tokens=prompt_tokens,
        hit_tokens=hit_tokens,
        policy_choice=cache.policy_choice(),
    )


class _Cache:
    """A cache, and what an engine does there with one request."""

    def __init__(self, model: SimulatedModel, num_blocks: int, retention: Retention) -> None:
        self._manager = CacheManager(
            CacheConfig(
                topology=model.topology,
                num_blocks=num_blocks,
                retention=retention,
                max_in_flight_tokens=CHUNK_TOKENS,
            )
        )
        self._engine = OneByOne(self._manager, max_step_tokens=CHUNK_TOKENS)

    def can_fit(self, num_tokens: int) -> bool:
        return self._manager.can_ever_fit(num_tokens)

    def policy_choice(self) -> PolicyChoice | None:
        return self._manager.policy_choice()

    def run(self, num_tokens: int, hashes: list[bytes], hint: Hint) -> int:
        """Compute one prompt and return how much of it was reused."""
        prompt = blank(num_tokens)
        request = self._manager.add(prompt, block_hashes=hashes, will_return=hint)
        return self._engine.finish(request, prompt)


def blank(num_tokens: int) -> memoryview:
    """Return tokens without meaning: prefixes are told apart only by the given hashes."""
    return memoryview(bytes(4 * num_tokens)).cast("I")
