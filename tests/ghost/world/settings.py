"""The small worlds: two groups of each pair of kinds, two requests, a pool that is just enough.

Blocks have two tokens. The first request has a prompt of two blocks and one token and samples one
token; the second has a prompt of two blocks and samples two. So both compute two whole blocks and
a tail, and a prompt ends inside a block and at its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Final, Literal

from kvbraid.cache import CacheConfig, CacheManager, GroupOptions
from kvbraid.recovery import Policy
from kvbraid.scheduler import Scheduler, SchedulerOptions, Step, StepResult
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.ghost.truth import Life, Truth

BLOCK: Final = 2
NUM_OUTPUTS: Final = (1, 2)


class Group(Enum):
    """A kind of group. Multi-head latent attention follows the rule of full attention in every
    call of the cache, the decision and the scheduler: it is left to the random worlds."""

    FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=BLOCK)
    WINDOW_1 = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=BLOCK, window=BLOCK + 1)
    WINDOW_2 = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=BLOCK, window=2 * BLOCK + 1)
    CHUNK_1 = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=BLOCK, chunk=BLOCK)
    CHUNK_2 = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=BLOCK, chunk=2 * BLOCK)
    STATE = GroupSpec(kind=SpecKind.MAMBA, block_size=BLOCK)

    @property
    def family(self) -> str:
        """The kind without its size."""
        return self.name.lower().rstrip("_12")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One small world.

    Attributes:
        groups: The two groups.
        num_shared_blocks: How many blocks of the two prompts have the same tokens.
        num_missing_blocks: By how many blocks the pool is too small for both requests at once.
        num_steps_in_flight: How many steps may be in flight.
        is_async: Whether loads are asynchronous.
        findable: See `SchedulerOptions`.
        policy: What happens to requests that a failed load affects.
        num_ranks: How many ranks report on each load.
        num_loads: How many loads begin.
        num_troubles: How many events happen that need not: a load that fails, whatever is said of
            it later and again; a preemption, an abort, an eviction.
        late_steps: For how many steps after the end of a load its failure may be reported,
            whatever happens to its request and its blocks before.
    """

    groups: tuple[Group, Group]
    num_shared_blocks: int = 1
    num_missing_blocks: int = 0
    num_steps_in_flight: int = 1
    is_async: bool = True
    findable: Literal["computed", "scheduled"] = "computed"
    policy: Policy = Policy.RECOMPUTE
    num_ranks: int = 1
    num_loads: int = 2
    num_troubles: int = 2
    late_steps: int = 0

    @property
    def pair(self) -> str:
        """The kinds of the groups, as results are counted."""
        return "+".join(group.family for group in self.groups)

    @property
    def options(self) -> SchedulerOptions:
        """The settings of the scheduler."""
        return SchedulerOptions(
            max_step_tokens=2 * BLOCK,
            max_running=2,
            max_steps_in_flight=self.num_steps_in_flight,
            findable=self.findable,
            policy=self.policy,
            retries=1,
            cooldown_failures=2,
            cooldown_steps=2,
            num_ranks=self.num_ranks,
            late_steps=self.late_steps,
        )

    def lives(self) -> tuple[Life, Life]:
        """What the two requests compute."""
        return _lives(self.num_shared_blocks)

    def config(self) -> CacheConfig:
        """The settings of the cache."""
        enough = _num_blocks(self.groups, self.num_steps_in_flight)
        return _config(self.groups, enough - self.num_missing_blocks)


@cache
def _lives(num_shared_blocks: int) -> tuple[Life, Life]:
    truth = Truth()
    first = [10, 11, 12, 13, 14]
    second = [20, 21, 22, 23]
    second[: num_shared_blocks * BLOCK] = first[: num_shared_blocks * BLOCK]
    return truth.life(first, NUM_OUTPUTS[0]), truth.life(second, NUM_OUTPUTS[1])


def _config(groups: tuple[Group, Group], num_blocks: int) -> CacheConfig:
    return CacheConfig(
        topology=Topology(groups=tuple(group.value for group in groups)),
        num_blocks=num_blocks,
        hash_seed="0",
        group_options=(GroupOptions(needs_zeroing=True),) * 2,
    )


@cache
def _num_blocks(groups: tuple[Group, Group], num_steps_in_flight: int) -> int:
    """The blocks, the null block included, that two requests need that share nothing.

    One block less is enough for each of them alone.
    """
    setting = Setting(groups=groups, num_steps_in_flight=num_steps_in_flight)
    cache = CacheManager(_config(groups, 64))
    scheduler = Scheduler(cache, setting.options)
    for life in _lives(0):
        prompt = life.tokens[: life.num_prompt_tokens]
        scheduler.add(prompt, max_new_tokens=len(life.outputs))
    least, steps = cache.pool.num_free, list[Step]()
    while scheduler.num_requests:
        while len(steps) < num_steps_in_flight and (step := scheduler.schedule()):
            steps.append(step)
            least = min(least, cache.pool.num_free)
        step = steps.pop(0)
        sampled = {part.request: [1] for part in step.scheduled if part.samples}
        scheduler.update(step, StepResult(tokens=sampled))
    fits = next(n for n in range(2, 64) if CacheManager(_config(groups, n)).can_ever_fit(6))
    return max(64 - least, fits + 1)


def settings(*, num_loads: int = 2, num_troubles: int = 2) -> Iterator[Setting]:
    """All small worlds: those with few states first.

    Retries, a second rank and late reports come where a block is shared and the pool is short. A
    retry is one more load.
    """
    modes: list[tuple[bool, Literal["computed", "scheduled"]]]
    modes = [(False, "computed"), (False, "scheduled"), (True, "computed")]
    pairs = list(combinations_with_replacement(Group, 2))
    for (is_async, findable), flight in product(modes, (1, 2)):
        for shared, missing, groups in product((0, 1, 2), (0, 1), pairs):
            setting = Setting(
                groups=groups,
                num_shared_blocks=shared,
                num_missing_blocks=missing,
                num_steps_in_flight=flight,
                is_async=is_async,
                findable=findable,
                num_loads=num_loads,
                num_troubles=num_troubles,
            )
            yield setting
            if shared == missing == 1 and findable == "computed":
                yield replace(setting, policy=Policy.RETRY, num_loads=num_loads + 1)
                # A report of a request means all of its loads.
                yield replace(setting, late_steps=2, num_loads=1)
                if is_async:
                    yield replace(setting, num_ranks=2)
