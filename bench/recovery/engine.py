"""One engine with a pool that is too small and a host tier, whose loads can fail.

Invariant: requests come one at a time. A request looks up its prompt in the pool and loads what
follows from the host tier, up to the longest boundary that pool and host tier hold together. When
the load has ended, what failed of it is decided on and recovered from for real, and the request
computes the rest without asking the host tier again. Whatever is computed is stored there: all
whole blocks, and those states that the cache keeps findable. A record that failed is dropped, and
stored again once it is computed again.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from kvbraid.cache import CacheConfig, CacheManager, Match, Need, Retention
from kvbraid.cache.step import NO_MATCH
from kvbraid.loads import Cause, Failures
from kvbraid.recovery import Action, Run, decide
from kvbraid.resume import needed_blocks
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.sim.traces.simulation import blank
from kvbraid.spec import SpecKind

from bench.recovery.host import Host

CHUNK_TOKENS: Final = 8_192

Fault: TypeAlias = Callable[[int], Sequence[int]]
"""Called with the number of blocks that a load fills; says which of them fail, by number."""

Places: TypeAlias = Sequence[tuple[int, int]]
"""Groups and positions."""


@dataclass(slots=True)
class Tally:
    """What was loaded, and what failed loads cost, in tokens that are computed again.

    Attributes:
        num_loads: Load jobs: one per request that loads anything.
        num_failures: Load jobs of which at least one block failed.
        ours: What the requests computed of what they had held when the load ended.
        zero: What they would have computed if they had started from zero.
        truncate: What they would have computed from the first block that failed on; it counts only
            where all groups are full.
        retry: What they would have computed if they had loaded again what the host tier still had.
    """

    num_loads: int = 0
    num_failures: int = 0
    ours: int = 0
    zero: int = 0
    truncate: int = 0
    retry: int = 0


class Engine:
    """A cache, its host tier, and what an engine does there with one request at a time."""

    def __init__(
        self, model: SimulatedModel, num_blocks: int, retention: Retention, fault: Fault
    ) -> None:
        self.cache = CacheManager(
            CacheConfig(
                topology=model.topology,
                num_blocks=num_blocks,
                retention=retention,
                max_in_flight_tokens=CHUNK_TOKENS,
            )
        )
        self.groups = model.topology.groups
        kinds = [group.kind for group in self.groups]
        self._is_full = all(kind.is_full for kind in kinds)
        self._attention = [i for i, kind in enumerate(kinds) if kind is not SpecKind.MAMBA]
        self.host = Host(self.groups)
        self.tally = Tally()
        self._fault = fault

    def run(self, num_tokens: int, hashes: list[bytes]) -> None:
        """Serve one prompt that the pool can hold."""
        self.cache.start_step()
        request = self.cache.add(blank(num_tokens), block_hashes=hashes)
        match = self.cache.match(request)
        end = self.host.longest(hashes, match.num_tokens, num_tokens)
        if end > match.num_tokens:
            self._load(request, match, end)
            match = self._loaded(request, num_tokens, hashes, match.num_tokens, end)
        self._compute(request, num_tokens, hashes, match)
        self.cache.release([request])

    # A load.

    def _load(self, request: int, match: Match, end: int) -> None:
        """Give the request the blocks that a load fills, up to token `end`."""
        self._allocate(
            Need(
                request=request,
                num_new_tokens=0,
                num_hit_tokens=match.num_tokens,
                junction=match.junction,
                num_external_tokens=end - match.num_tokens,
                delay_commit=True,
                loading_groups=tuple(range(len(self.groups))),
            )
        )
        self.cache.take_work()
        self.cache.start_step()

    def _loaded(
        self, request: int, num_tokens: int, hashes: list[bytes], hit: int, end: int
    ) -> Match:
        """End a load: recover from what failed; return a match if the request starts again."""
        self.tally.num_loads += 1
        failed = self._failed(hit, end)
        if not failed:
            self.cache.commit(request, end)
            return NO_MATCH
        run = Run(
            request=request,
            num_tokens=num_tokens,
            num_prompt_tokens=num_tokens,
            num_known_tokens=num_tokens,
            num_local_tokens=hit,
            num_loaded_tokens=end - hit,
            num_processed_tokens=end,
            num_computed_tokens=end,
            delays_commit=True,
        )
        match = self._recover(run, failed, hashes)
        start = self.cache.num_computed_tokens(request) + match.num_tokens
        self._count(start, end, failed)
        self.tally.retry += end - self.host.longest(hashes, start, num_tokens)
        return match

    def _failed(self, hit: int, end: int) -> Places:
        """Return the places that fail of those that a load from `hit` to `end` fills: all that a
        resume there needs, and that is not in the hit."""
        filled = [
            range(max(needed.start, hit // self.host.block_size), needed.stop)
            for needed in (needed_blocks(group, end) for group in self.groups)
        ]
        ends = list(accumulate(len(positions) for positions in filled))
        failed = []
        for number in self._fault(ends[-1]):
            group = bisect_right(ends, number)
            failed.append((group, filled[group][number - ends[group]]))
        return failed

    def _recover(self, run: Run, failed: Places, hashes: Sequence[bytes]) -> Match:
        """Decide and apply. Return what a request that starts over finds in the pool."""
        positions: dict[int, list[int]] = {}
        for group, position in failed:
            positions.setdefault(group, []).append(position)
        records = [self.host.record(group, hashes[position]) for group, position in failed]
        failures = Failures(
            places={run.request: positions}, causes=dict.fromkeys(records, Cause.CORRUPT)
        )
        plan = decide(self.cache, [run], failures)
        self.cache.recover(plan.recovery)
        for record in plan.drop:
            self.host.drop(record)
        (told,) = plan.requests.values()
        if told.action is Action.REWIND:
            assert self.cache.num_computed_tokens(run.request) == told.resume
            return NO_MATCH
        assert told.action is Action.START_OVER, told
        match = self.cache.match(run.request)
        assert match.num_tokens >= told.resume, f"{match} after {told}"
        return match

    def _count(self, start: int, end: int, failed: Places) -> None:
        """Count a failure. Neither way that others go would have computed less."""
        ours, tally = end - start, self.tally
        assert 0 < ours <= end, f"resumed at {start} after a load up to {end}"
        tally.num_failures += 1
        tally.ours += ours
        tally.zero += end
        if self._is_full:
            truncate = end - min(position for _, position in failed) * self.host.block_size
            assert ours <= truncate, f"{ours} tokens computed again; truncating needs {truncate}"
            tally.truncate += truncate

    # What is computed.

    def _compute(self, request: int, num_tokens: int, hashes: list[bytes], match: Match) -> None:
        """Compute the rest of a prompt, chunk by chunk, and store it."""
        start = self.cache.num_computed_tokens(request) + match.num_tokens
        while start < num_tokens:
            chunk = self.cache.plan_chunk(request, CHUNK_TOKENS, match=match)
            self._allocate(
                Need(
                    request=request,
                    num_new_tokens=chunk,
                    num_hit_tokens=match.num_tokens,
                    junction=match.junction if match.num_tokens else None,
                )
            )
            self._store(start, start + chunk, hashes)
            self.cache.start_step()
            start, match = start + chunk, NO_MATCH

    def _store(self, start: int, end: int, hashes: list[bytes]) -> None:
        """Store what a step has computed, or kept, of a prompt."""
        size = self.host.block_size
        self.host.store(self._attention, hashes[start // size : end // size])
        for state in self.cache.take_work().kept_states:
            self.host.store([state.group], [hashes[state.num_tokens // size - 1]])

    def _allocate(self, need: Need) -> None:
        assert self.cache.allocate([need]).num_fit, f"{need} does not fit into the pool"
