"""`ByValueModel` whose lean the traffic decides: beside it run models of the same cache, one per
lean that is fixed, and play every request that has ended from its hashes alone."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from kvbraid.cache import ByValue, CacheConfig, CacheManager, GroupOptions, Lean, Match, Need
from kvbraid.spec import SpecKind

from tests.reference import resume
from tests.reference.cache_by_value import ByValueModel
from tests.reference.cache_memory import Fitted
from tests.reference.tape_model import MOST_BLOCKS, Life, Sample, Scale, Tape

LATELY, JUST_NOW = 256, 8
LEAST_LEAD = 0.003

Make: TypeAlias = Callable[[CacheConfig], ByValueModel | CacheManager]
"""What makes a shadow. The native cache with a fixed lean, which other tests compare with the
model, is fast enough for large pools."""


def stops(life: Life, match: Match, state_unit: int | None) -> Iterator[int]:
    """Where steps end; with states also where a state is worth keeping."""
    ends = {*life.step_ends, life.num_prompt_tokens}
    if state_unit is not None:
        last = (life.num_prompt_tokens - 1) // state_unit * state_unit
        ends |= {match.junction // state_unit * state_unit, last}
    yield from sorted(s for s in ends if match.num_tokens < s <= life.num_prompt_tokens)


def miniature(config: CacheConfig, policy: ByValue, scale: Scale) -> CacheConfig:
    """The same groups in larger blocks, and fewer of them."""
    topology, times = config.topology, scale.blocks
    larger = replace(
        topology,
        groups=tuple(replace(g, block_size=g.block_size * times) for g in topology.groups),
        partial_hits=False,
        alignment=topology.alignment and topology.alignment * times,
        hash_block_size=topology.hash_block_size and topology.hash_block_size * times,
    )
    return replace(
        config,
        topology=larger,
        retention=policy,
        num_blocks=scale.num_blocks + 1,
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


class Shadow:
    """A cache with a fixed lean, in which requests live one after the other."""

    def __init__(self, config: CacheConfig, policy: ByValue, scale: Scale, make: Make) -> None:
        alignment = resume.alignment(config.topology)
        own = alignment * scale.blocks
        rounded = replace(policy, interval=-(-policy.interval // own) * own)
        self.policy = replace(policy, interval=-(-policy.interval // alignment) * alignment)
        self.model = make(miniature(config, rounded, scale))
        self.unit = resume.hash_block(config.topology) * scale.blocks
        kinds = {group.kind for group in config.topology.groups}
        self.state_unit = own if SpecKind.MAMBA in kinds else None

    def play(self, life: Life) -> int:
        prompt = life.num_prompt_tokens
        count = min(prompt // self.unit, len(life.hashes))
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
        for end in stops(life, match, self.state_unit):
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


class Adaption:
    """Shadows with all leans play what ends; `lean` is the one that has earned most lately."""

    def __init__(self, config: CacheConfig, make: Make) -> None:
        policy = config.retention
        assert isinstance(policy, ByValue)
        assert policy.lean is None
        self.cost = policy.cost
        leans = [(Lean.DENSE, policy.interval), (Lean.VALUE, policy.interval)]
        cached = [group for group in config.topology.groups if group.prefix_cacheable]
        has_windows = any(group.kind.is_window for group in cached)
        if has_windows:
            leans += [(Lean.INTERVAL, tokens) for tokens in (1_024, 8_192)]
        if has_windows or any(group.kind is SpecKind.MAMBA for group in cached):
            leans.append((Lean.INTERVAL, 0))
        self.scale = Scale.of(config)
        self.shadows = [
            Shadow(config, replace(policy, lean=lean, interval=interval), self.scale, make)
            for lean, interval in (leans if config.caching else ())
        ]
        self.sample = Sample(self.scale.sample)
        self.tape = Tape(self._fill(config), len(self.shadows))
        self.unit = resume.hash_block(config.topology) * self.scale.blocks
        self.lean = 0
        self.lately, self.just_now = Evidence(LATELY), Evidence(JUST_NOW)
        self.num_requests = self.since = self.num_changes = self.num_vetoes = 0

    def _fill(self, config: CacheConfig) -> int | None:
        """The hashes that fill a shadow; None if the pool is small."""
        if config.num_blocks <= MOST_BLOCKS:
            return None
        sizes = [g.block_size for g in config.topology.groups if g.prefix_cacheable]
        alignment = resume.alignment(config.topology)
        num_hashes = alignment // resume.hash_block(config.topology)
        return self.scale.num_blocks // sum(alignment // size for size in sizes) * num_hashes

    def end(self, life: Life, num_hashes: int, *, are_enough: bool) -> bool:
        """A request with so many hashes has ended; returns whether the lean changes.
        `are_enough`: most of what was reused was at checkpoints."""
        if not self.shadows or not life.num_tokens:
            return False
        self.num_requests += 1
        every, most = self.scale.blocks, life.num_tokens // self.unit
        own = replace(life, hashes=life.hashes[every - 1 :: every][:most])
        is_told = bool(own.hashes) and self.sample.takes(own.hashes)
        for played, counts in self.tape.end(own if is_told else None, num_hashes):
            saved = [self._saved(shadow.play(played)) for shadow in self.shadows]
            if counts:
                everything = self._saved(played.num_prompt_tokens)
                self.lately.add(saved, everything)
                self.just_now.add(saved, everything)
        tells = any(map(any, self.lately.squares))
        best = self._better() if tells else (1 if are_enough else self.lean)
        if best is None or best == self.lean:
            return False
        self.lean, self.since = best, self.num_requests
        self.num_changes += 1
        return True

    def _better(self) -> int | None:
        if self.shadows[self.lean].policy.lean is Lean.VALUE:
            ended = self.just_now.better(self.lean)
            if ended is not None:
                return ended
        better = self.lately.better(self.lean)
        disagrees = better is not None and self.just_now.lead(better, self.lean) < 0
        self.num_vetoes += disagrees
        return None if disagrees else better

    def _saved(self, num_tokens: int) -> float:
        pairs = num_tokens * num_tokens
        return self.cost.per_token * num_tokens + self.cost.per_pair * pairs / 2


class AdaptingModel(ByValueModel):
    """See `ByValueModel`; it imitates one of the models that its adaption plays."""

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self.adaption = Adaption(config, ByValueModel)
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
        at_checkpoints, elsewhere = self.checkpoints.reused
        are_enough = at_checkpoints > elsewhere
        if self.adaption.end(life, len(life.hashes), are_enough=are_enough):
            shadow = self.adaption.shadows[self.adaption.lean]
            assert isinstance(shadow.model, ByValueModel)
            self.checkpoints.lean_as(shadow.model.checkpoints)
            self.checkpoints.interval = shadow.policy.interval
