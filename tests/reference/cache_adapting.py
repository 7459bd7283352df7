"""`ByValueModel` whose lean the traffic decides: beside it run models of the same cache, one per
lean that is fixed, and play every request that has ended from its hashes alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvbraid.cache import ByValue, CacheConfig, GroupOptions, Lean, Match, Need
from kvbraid.spec import SpecKind

from tests.reference.cache_by_value import ByValueModel
from tests.reference.cache_memory import Fitted

LATELY, JUST_NOW = 256, 32
LEAST_LEAD = 0.003


@dataclass(frozen=True)
class Life:
    """A request that has ended."""

    hashes: list[bytes]
    num_prompt_tokens: int
    num_tokens: int
    step_ends: list[int]
    hint: float | None = None

    def stops(self, match: Match, state_unit: int | None) -> Iterator[int]:
        """Where steps end; with states also where a state is worth keeping."""
        stops = {*self.step_ends, self.num_prompt_tokens}
        if state_unit is not None:
            last = (self.num_prompt_tokens - 1) // state_unit * state_unit
            stops |= {match.junction // state_unit * state_unit, last}
        yield from sorted(s for s in stops if match.num_tokens < s <= self.num_prompt_tokens)


class Shadow:
    """A cache with a fixed lean, in which requests live one after the other."""

    def __init__(self, config: CacheConfig, policy: ByValue) -> None:
        self.policy = policy
        miniature = replace(
            config,
            topology=replace(config.topology, partial_hits=False),
            retention=policy,
            num_blocks=config.num_blocks + 1,
            group_options=tuple(
                GroupOptions(is_ring=each.is_ring, is_replicated=each.is_replicated)
                for each in config.group_options
            ),
            max_model_len=2**32 - 1,
            max_in_flight_tokens=None,
            watermark=0.0,
            num_reprefillable_tokens=0,
            partial_junctions=False,
            events=False,
        )
        self.model = ByValueModel(miniature)
        kinds = {group.kind for group in config.topology.groups}
        self.state_unit = self.model.alignment if SpecKind.MAMBA in kinds else None

    def play(self, life: Life) -> int:
        prompt = life.num_prompt_tokens
        count = min(prompt // self.model.hash_block, len(life.hashes))
        request = self.model.add(
            [0] * prompt, block_hashes=life.hashes[:count], will_return=life.hint
        )
        match = self.model.match(request)
        fits = self.computes(request, match, life)
        if fits and life.num_tokens > prompt:
            more = life.num_tokens - prompt
            self.model.extend(request, [0] * more, block_hashes=life.hashes[count:])
            self.step(Need(request=request, num_new_tokens=more))
        self.model.release([request])
        return match.num_tokens if fits else 0

    def computes(self, request: int, match: Match, life: Life) -> bool:
        done, hit = match.num_tokens, Need(request=request, num_new_tokens=0, match=match)
        for end in life.stops(match, self.state_unit):
            need = hit if done == match.num_tokens else Need(request=request, num_new_tokens=0)
            need.num_new_tokens = end - done
            if not self.step(need):
                return False
            done = end
        return True

    def step(self, need: Need) -> bool:
        fits = self.model.allocate([need]).num_fit == 1
        self.model.take_work()
        self.model.start_step()
        return fits


class Evidence:
    """What each shadow saved of each request; older requests count less."""

    def __init__(self, memory: int) -> None:
        self.keeps = 1 - 1 / memory
        self.saved: list[float] = []
        self.squares: list[list[float]] = []
        self.all = 0.0

    def add(self, saved: Sequence[float], everything: float) -> None:
        self.all = self.all * self.keeps + everything
        self.saved = [
            before * self.keeps + one
            for before, one in zip(self.saved or [0.0] * len(saved), saved, strict=True)
        ]
        self.squares = [
            [
                before * self.keeps + (one - other) * (one - other)
                for before, other in zip(row, saved, strict=True)
            ]
            for row, one in zip(
                self.squares or [[0.0] * len(saved) for _ in saved], saved, strict=True
            )
        ]

    def better(self, than: int) -> int | None:
        best = self.saved.index(max(self.saved))
        chance = math.sqrt(self.squares[best][than])
        return best if self.lead(best, than) > max(chance, LEAST_LEAD * self.all) else None

    def lead(self, one: int, other: int) -> float:
        return self.saved[one] - self.saved[other]


class AdaptingModel(ByValueModel):
    """See `ByValueModel`; `lean` is the shadow that the cache imitates."""

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        policy = config.retention
        assert isinstance(policy, ByValue)
        assert policy.lean is None
        self.cost = policy.cost
        leans = [(Lean.DENSE, policy.interval), (Lean.VALUE, policy.interval)]
        cached = [group for group in config.topology.groups if group.prefix_cacheable]
        has_windows = any(group.kind.is_window for group in cached)
        if has_windows:
            aligned = (-(-tokens // self.alignment) * self.alignment for tokens in (1_024, 8_192))
            leans += [(Lean.INTERVAL, tokens) for tokens in aligned]
        if has_windows or any(group.kind is SpecKind.MAMBA for group in cached):
            leans.append((Lean.INTERVAL, 0))
        self.shadows = [
            Shadow(config, replace(policy, lean=lean, interval=interval))
            for lean, interval in (leans if config.caching else ())
        ]
        self.lean = 0
        self.lately, self.just_now = Evidence(LATELY), Evidence(JUST_NOW)
        self.num_requests = self.since = self.num_changes = 0
        self.step_ends: dict[int, list[int]] = {}

    def allocate(self, needs: Sequence[Need], *, reserved_blocks: int = 0) -> Fitted:
        before = [self.memory.requests[need.request].num_computed_tokens for need in needs]
        fitted = super().allocate(needs, reserved_blocks=reserved_blocks)
        for need, computed in list(zip(needs, before, strict=True))[: fitted.num_fit]:
            known = self.memory.requests[need.request]
            if computed < known.num_prompt_tokens:
                self.step_ends.setdefault(need.request, []).append(known.num_computed_tokens)
        return fitted

    def release(self, requests: Sequence[int], *, step_failed: bool = False) -> None:
        self._leave_step(requests, step_failed=step_failed)
        for request in requests:
            life = self._life(request)
            super().release([request])
            self._adapt_to(life)

    def pop_blocks(self, request: int) -> list[int]:
        self._leave_step([request], step_failed=False)
        life = self._life(request)
        blocks = super().pop_blocks(request)
        self._adapt_to(life)
        return blocks

    def _life(self, request: int) -> Life:
        known = self.memory.requests[request]
        computed = min(known.num_computed_tokens, len(known.tokens))
        hashes = known.hashes[: computed // self.hash_block]
        prompt = min(known.num_prompt_tokens, computed)
        ends, hint = self.step_ends.pop(request, []), self._progress(request).how.hint
        return Life(hashes, prompt, computed, ends, hint)

    def _adapt_to(self, life: Life) -> None:
        if not self.shadows or not life.num_tokens:
            return
        self.num_requests += 1
        saved = [self._saved(shadow.play(life)) for shadow in self.shadows]
        everything = self._saved(life.num_prompt_tokens)
        self.lately.add(saved, everything)
        self.just_now.add(saved, everything)
        best = self._better() if any(map(any, self.lately.squares)) else self._guess()
        if best is not None and best != self.lean:
            self.lean, self.since = best, self.num_requests
            self.num_changes += 1
            shadow = self.shadows[best]
            self.checkpoints.lean_as(shadow.model.checkpoints)
            self.checkpoints.interval = shadow.policy.interval

    def _guess(self) -> int:
        """By value, once most of what was reused was at checkpoints."""
        at_checkpoints, elsewhere = self.checkpoints.reused
        return 1 if at_checkpoints > elsewhere else self.lean

    def _better(self) -> int | None:
        if self.shadows[self.lean].policy.lean is Lean.VALUE:
            ended = self.just_now.better(self.lean)
            if ended is not None:
                return ended
        better = self.lately.better(self.lean)
        disagrees = better is not None and self.just_now.lead(better, self.lean) < 0
        return None if disagrees else better

    def _saved(self, num_tokens: int) -> float:
        pairs = num_tokens * num_tokens
        return self.cost.per_token * num_tokens + self.cost.per_pair * pairs / 2
