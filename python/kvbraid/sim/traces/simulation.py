"""A trace played against one engine's cache alone: no engine, no clock, no token.

The law: requests come one at a time. Each looks up its prompt, computes the rest in chunks that
end where states can be kept, holding its blocks, and gives them back; outputs are neither
computed nor kept (the trace shows them in the next prompt). Of what a prompt has behind the last
block that the trace knows, one token is computed: the next turn repeats the rest, but under ids
that do not say so, and a state or window kept in there would be lost to it. A request that the
empty pool cannot hold is counted and left out, whatever the policy.
"""

from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from kvbraid.cache import CacheConfig, CacheManager, Need, Retention
from kvbraid.cache.chunk import ChunkRules, Position, chunk_rules, plan_chunk
from kvbraid.cache.retention import checkpoint_interval
from kvbraid.errors import InvalidValueError
from kvbraid.sim.traces.models import CacheModel
from kvbraid.sim.traces.prefix_hashes import PrefixHashes
from kvbraid.sim.traces.trace import Trace

CHUNK_TOKENS: Final = 8_192

Progress: TypeAlias = Callable[[int], None]  # Gets the number of requests done.


_TOO_MANY_BLOCKS: Final = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """What one cache reused of a trace. Tokens are those of the prompts that were not left out."""

    num_blocks: int
    num_requests: int
    num_left_out: int
    prompt_tokens: int
    hit_tokens: int

    @property
    def rate(self) -> float:
        """Share of the prompt tokens that were reused."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, the rate among them."""
        return {**asdict(self), "hit_rate": round(self.rate, 6)}


def check_pool(model: CacheModel, num_blocks: int) -> None:
    """Refuse a pool that cannot hold anything, or that no cache numbers.

    Raises:
        InvalidValueError: It says how much memory to give.
    """
    if not 2 <= num_blocks < _TOO_MANY_BLOCKS:
        remedy = "more" if num_blocks < 2 else "less"
        msg = (
            f"a pool of {num_blocks} blocks, each of {model.block_bytes:,} bytes for "
            f"{model.name}; expected at least two, one of which stands for none, and fewer than "
            f"{_TOO_MANY_BLOCKS}: give {remedy} memory"
        )
        raise InvalidValueError(msg)


def simulate(
    trace: Trace,
    model: CacheModel,
    num_blocks: int,
    retention: Retention,
    *,
    progress: Progress | None = None,
) -> HitRate:
    """Play a trace against a pool of so many blocks.

    Raises:
        InvalidValueError: A pool that cannot hold anything.
    """
    check_pool(model, num_blocks)
    cache = _Cache(model, num_blocks, retention)
    hashes = PrefixHashes(trace.block_tokens, model.hash_block_size)
    prompt_tokens = hit_tokens = num_left_out = 0
    for number, request in enumerate(trace.play(), start=1):
        if cache.can_fit(request.num_tokens):
            prompt_tokens += request.num_tokens
            num_known = len(request.ids) * trace.block_tokens
            hit_tokens += cache.run(min(request.num_tokens, num_known + 1), hashes.of(request))
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
    )


class _Cache:
    """The cache, and what its engine does with one request."""

    def __init__(self, model: CacheModel, num_blocks: int, retention: Retention) -> None:
        self._manager = CacheManager(
            CacheConfig(
                topology=model.topology,
                num_blocks=num_blocks,
                retention=retention,
                max_in_flight_tokens=CHUNK_TOKENS,
            )
        )
        self._rules: ChunkRules = chunk_rules(
            model.topology,
            max_chunk_tokens=CHUNK_TOKENS,
            interval=checkpoint_interval(retention),
        )
        self._tokens = memoryview(array("I"))

    def can_fit(self, num_tokens: int) -> bool:
        return self._manager.can_ever_fit(num_tokens)

    def run(self, num_tokens: int, hashes: list[bytes]) -> int:
        """Compute one prompt and return how much of it was reused."""
        manager = self._manager
        request = manager.add(self._blank(num_tokens), block_hashes=hashes)
        match = manager.match(request)
        done, hit = match.num_tokens, match.num_tokens
        while done < num_tokens:
            chunk = self._plan(done, num_tokens, match.junction)
            manager.start_step()
            need = Need(
                request=request,
                num_new_tokens=chunk,
                num_hit_tokens=hit,
                junction=match.junction,
            )
            allocation = manager.allocate([need])
            assert allocation.num_fit == 1, (
                f"token {done + chunk} of {num_tokens} does not fit into a pool that should hold "
                "the whole prompt"
            )
            manager.free_blocks([block for pair in manager.take_copies() for block in pair])
            done, hit = done + chunk, 0
        manager.release([request])
        return match.num_tokens

    def _plan(self, done: int, num_tokens: int, junction: int) -> int:
        position = Position(
            start=done,
            num_prompt_tokens=num_tokens,
            num_tokens=num_tokens,
            budget=min(CHUNK_TOKENS, num_tokens - done),
            junction=junction,
        )
        chunk = plan_chunk(self._rules, position)
        assert chunk > 0, f"no chunk of {CHUNK_TOKENS} tokens can be planned at {position}"
        return chunk

    def _blank(self, num_tokens: int) -> memoryview:
        """Tokens that nobody looks at, for prefixes are told apart by the hashes given."""
        if len(self._tokens) < num_tokens:
            self._tokens = memoryview(array("I", bytes(4 * 2 * num_tokens)))
        return self._tokens[:num_tokens]
