"""What one simulation is like, drawn from a seed: cache, scheduler, tiers and traffic."""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from kvbraid.cache import CacheConfig
from kvbraid.recovery import Policy
from kvbraid.scheduler import SchedulerOptions
from kvbraid.spec import SpecKind, Topology
from kvbraid.transfer.offload import OffloadOptions

from tests.ghost.configs import KINDS, draw_cache
from tests.ghost.tiers import Habits

LATE_STEPS: Final = 8
"""For how many steps failures may be reported late, where late reports are promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTiers:
    """The engine's own tiers, the share of their jobs that have faults, and the share of ticks in
    which the pool loses all that nobody uses."""

    host_slots: int
    tiers: tuple[tuple[str, int], ...]
    options: OffloadOptions
    fault_share: float
    eviction_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`is_roomy`: nobody is preempted for want of blocks, so that reports may come late.
    `fails_whole`: every tier fails every load, each of them whole."""

    cache: CacheConfig
    options: SchedulerOptions
    habits: Habits
    own: OwnTiers | None
    prompts: tuple[tuple[int, ...], ...]
    num_outputs: tuple[int, ...]
    salts: tuple[str | None, ...]
    fault_share: float
    fails_whole: bool
    is_roomy: bool

    @property
    def alignment(self) -> int:
        return alignment_of(self.cache.topology)


def alignment_of(topology: Topology) -> int:
    return topology.alignment or topology.groups[0].block_size


def draw_setting(seed: int) -> Setting:
    random = Random(seed)
    cache = draw_cache(random, KINDS[seed % len(KINDS)], num_blocks=8)
    unit = alignment_of(cache.topology)
    has_own, is_late = random.random() < 0.6, random.random() < 0.4
    # No plan names a block to the tiers that a run computed and gave back, and that was handed out
    # again before a late report: docs/recovery.md says so.
    has_own = has_own and not is_late
    prompts = tuple(draw_prompts(random, unit, random.randint(4, 9) * (1 + has_own)))
    num_outputs = tuple(random.choice((1, 2, 4, 6)) for _ in prompts)
    max_running, is_roomy = random.randint(2, 6), random.random() < 0.7
    most = max(len(p) + n for p, n in zip(prompts, num_outputs, strict=True))
    largest = blocks_of(cache.topology, most)
    spare = (max_running + 1) * largest + 8 if is_roomy else random.randint(0, largest)
    options = SchedulerOptions(
        max_step_tokens=random.choice((unit + 1, 2 * unit + 1, 64, 64)),
        max_running=max_running,
        max_steps_in_flight=random.choice((1, 2, 2)),
        findable=random.choice(("computed", "scheduled", "scheduled")),
        policy=random.choice((Policy.RECOMPUTE, Policy.RECOMPUTE, Policy.RETRY, Policy.FAIL)),
        num_ranks=random.choice((1, 2, 2, 3)),
        retries=random.choice((0, 1, 1, 2)),
        cooldown_failures=random.choice((1, 3, 1_000)),
        cooldown_steps=random.choice((1, 4)),
    )
    fault_share = random.choice((0.6, 0.8, 1.0))
    habits = Habits(
        async_share=random.choice((0.0, 0.5, 0.5, 1.0)),
        remote_share=random.choice((0.3, 0.7, 1.0)),
    )
    if is_late:
        options = replace(options, late_steps=LATE_STEPS)
    own = draw_own_tiers(random, largest) if has_own else None
    salts: tuple[str | None, ...] = (None, None, "1", "2") if random.random() < 0.25 else (None,)
    return Setting(
        cache=replace(cache, num_blocks=1 + largest + spare, findable=own is not None),
        options=options,
        habits=habits,
        own=own,
        prompts=prompts,
        num_outputs=num_outputs,
        salts=tuple(random.choice(salts) for _ in prompts),
        fault_share=fault_share,
        fails_whole=random.random() < 0.05,
        is_roomy=is_roomy,
    )


def draw_real_setting(seed: int) -> Setting | None:
    """The setting of a simulation with real ranks: what is loaded is most often what they have
    stored. None if this seed has no tier below host memory."""
    setting = draw_setting(seed)
    if not setting.own or not setting.own.tiers:
        return None
    random = Random(seed + (2 << 40))
    own = replace(
        setting.own,
        fault_share=random.choice((0.05, 0.1, 0.3)),
        eviction_share=random.choice((0.5, 0.8)),
    )
    return replace(setting, own=own, habits=replace(setting.habits, remote_share=0.1))


def draw_own_tiers(random: Random, largest: int) -> OwnTiers:
    names = random.choice(((), ("disk",), ("disk",), ("disk", "far")))
    num_records = random.choice((largest, 20 * largest))
    return OwnTiers(
        host_slots=random.randint(1, random.choice((largest, 3 * largest))),
        tiers=tuple((name, random.randint(1, num_records)) for name in names),
        options=OffloadOptions(
            max_pending_stores=random.choice((4, 1_000, 1_000)),
            max_pending_writes=random.choice((4, 1_000, 1_000)),
            max_promotions=random.choice((1, 4, 1_000)),
            max_job_items=random.choice((1, 3, 64)),
            load_deadline=random.choice((4, 1_000)),
            failures_before_rest=random.choice((1, 3)),
            rest=random.choice((0, 5)),
        ),
        fault_share=random.choice((0.0, 0.1, 0.3, 1.0)),
        eviction_share=random.choice((0.1, 0.3, 0.5)),
    )


def draw_prompts(random: Random, unit: int, count: int) -> list[tuple[int, ...]]:
    """Prompts that share prefixes: one or two stems, cut anywhere, with ends of their own."""
    stems = [
        [random.randrange(40) for _ in range(random.randint(2, 5) * unit)]
        for _ in range(random.choice((1, 1, 2)))
    ]
    prompts: list[tuple[int, ...]] = []
    for _ in range(count):
        if prompts and random.random() < 0.3:
            prompts.append(prompts[-1])
            continue
        stem = random.choice(stems)
        cut = random.choice((len(stem), len(stem), random.randint(1, len(stem))))
        end = [random.randrange(40) for _ in range(random.choice((0, 0, 1, unit)))]
        prompts.append((*stem[:cut], *end))
    return prompts


def blocks_of(topology: Topology, num_tokens: int) -> int:
    """Blocks that a request holds at most."""
    return sum(
        3 if group.kind is SpecKind.MAMBA else -(-num_tokens // group.block_size) + 1
        for group in topology.groups
    )
