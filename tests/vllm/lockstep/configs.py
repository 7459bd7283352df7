"""Random configurations: groups of every kind, and how the made-up scheduler uses them.

A configuration is a pure function of its number. The numbers go round a table of features, so that
each feature occurs often enough; everything else is random. Configurations that the engine refuses
or cannot run (`_is_valid`) are never generated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from kvbraid.spec import SpecKind

FULL: Final = (SpecKind.FULL_ATTENTION, SpecKind.MLA_ATTENTION)
WINDOWS: Final = (SpecKind.SLIDING_WINDOW, SpecKind.SLIDING_WINDOW_MLA)
CHUNKED: Final = SpecKind.CHUNKED_LOCAL_ATTENTION
STATE: Final = SpecKind.MAMBA


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group; `is_wide` gives it another number format than the rest of the model.

    A block covers its tokens on all ranks; `is_replicated`: each of them keeps them all.
    """

    kind: SpecKind
    block_size: int
    window: int | None = None
    chunk: int | None = None
    eagle: bool = False
    is_wide: bool = False
    is_replicated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One cache, and the scheduler that drives it."""

    number: int
    groups: tuple[Group, ...]
    hash_block_size: int
    num_blocks: int
    max_model_len: int
    retention: int | None  # None: dense; otherwise the interval in tokens.
    num_draft_tokens: int
    prefill_lookahead: int  # 1 or more with EAGLE; above 1 a multi-module drafter.
    steps_in_flight: int  # 0: synchronous scheduling.
    token_budget: int
    long_prefill_tokens: int  # 0: no threshold.
    max_running: int
    watermark: float
    full_sequence_must_fit: bool
    is_in_flight_capped: bool
    loads: bool  # A connector brings tokens computed elsewhere.
    defers_frees: bool
    drains_events_late: bool
    tells_computed: bool  # The caller gives num_computed_tokens, or our manager tracks it.
    gives_hashes: bool
    decodes_in_batches: bool
    num_ranks: int = 1  # Of decode-context parallelism.
    checkpoint_alignment: int | None = None  # The backend saves a state inside a step.
    partial_junctions: bool = False  # States are kept at junctions inside a block.
    frees_copies: bool = True  # The scheduler does, or our manager as the next step starts.
    caching: bool = True
    events: bool = True

    @property
    def alignment(self) -> int:
        return math.lcm(*(group.block_size for group in self.groups))

    @property
    def use_eagle(self) -> bool:
        return any(group.eagle for group in self.groups)

    @property
    def partial_hits(self) -> bool:
        """Whether hits may end inside a block of a state group."""
        least = self.hash_block_size + (self.num_ranks == 1)
        states = any(g.kind is STATE and g.block_size >= least for g in self.groups)
        others = all(
            g.kind in FULL or g.kind is STATE or g.block_size == self.hash_block_size
            for g in self.groups
        )
        return self.caching and len(self.groups) > 1 and states and others

    @property
    def state_block_size(self) -> int | None:
        """The block at whose ends a prefill chunk must stop, if there are states."""
        sizes = [group.block_size for group in self.groups if group.kind is STATE]
        return math.lcm(*sizes) if sizes else None

    @property
    def num_reprefillable_tokens(self) -> int:
        return max(0, self.prefill_lookahead - 1)

    @property
    def num_lookahead_tokens(self) -> int:
        return self.num_draft_tokens if self.use_eagle else 0

    @property
    def max_in_flight_tokens(self) -> int | None:
        return self.token_budget * (self.steps_in_flight + 1) if self.is_in_flight_capped else None

    @property
    def needs_zeroing(self) -> bool:
        """States are read before they are written; number formats may not share a block."""
        attention = {group.is_wide for group in self.groups if group.kind is not STATE}
        return self.state_block_size is not None or len(attention) > 1

    @property
    def num_specs(self) -> int:
        return len({replace(group, eagle=False) for group in self.groups})


FEATURES: Final[dict[str, Callable[[Config], bool]]] = {
    "unequal_blocks": lambda config: len({g.block_size for g in config.groups}) > 1,
    "eagle": lambda config: config.use_eagle,
    "partial_hits": lambda config: config.partial_hits,
    "three_specs": lambda config: config.num_specs >= 3,
    "no_full_group": lambda config: not any(g.kind in FULL for g in config.groups),
    "states": lambda config: config.state_block_size is not None,
    "states_off_alignment": lambda config: (
        not config.partial_hits
        and (config.state_block_size or config.alignment) < config.alignment
    ),
    "chunked": lambda config: any(g.kind is CHUNKED for g in config.groups),
    "context_parallel": lambda config: config.num_ranks > 1,
    "checkpoints": lambda config: config.checkpoint_alignment is not None,
    "partial_junctions": lambda config: config.partial_junctions,
}
"""What a lock-step run must have at least MIN_OF_EACH configurations of."""

MIN_OF_EACH: Final = 30
NUM_CONFIGS: Final = MIN_OF_EACH * len(FEATURES)


def generate(number: int) -> Config:
    """Draw configuration `number`; it has the feature whose turn it is."""
    random = Random(f"lockstep {number}")
    wanted = list(FEATURES.values())[number % len(FEATURES)]
    while True:
        config = _draw(random, number)
        if config is not None and wanted(config):
            break
    has_states = config.state_block_size is not None
    return replace(
        config,
        caching=has_states or random.random() < 0.94,  # States are kept for prefixes alone.
        events=random.random() < 0.95,
        frees_copies=config.defers_frees or random.random() < 0.5,
    )


def _draw(random: Random, number: int) -> Config | None:
    groups = _groups(random)
    hash_block_size = math.gcd(*(group.block_size for group in groups))
    if len(groups) > 1 and hash_block_size % 2 == 0 and random.random() < 0.3:
        hash_block_size //= 2
    groups = _with_eagle(random, groups)
    use_eagle = any(group.eagle for group in groups)
    num_draft_tokens = random.randint(1, 3) if use_eagle or random.random() < 0.15 else 0
    alignment = math.lcm(*(group.block_size for group in groups))
    is_multi_module = use_eagle and 2 <= num_draft_tokens <= alignment and random.random() < 0.3
    steps_in_flight = random.choices((0, 1, 2), (5, 3, 2))[0]
    config = Config(
        number=number,
        groups=groups,
        hash_block_size=hash_block_size,
        num_blocks=2,
        max_model_len=max(96, alignment * random.randint(3, 12)),
        retention=_retention(random, groups, alignment),
        num_draft_tokens=num_draft_tokens,
        prefill_lookahead=(num_draft_tokens if is_multi_module else 1) if use_eagle else 0,
        steps_in_flight=steps_in_flight,
        token_budget=random.choice((alignment, 2 * alignment, 48, 100, 256)) + 8,
        long_prefill_tokens=random.choice((0, 0, alignment, 40)),
        max_running=random.randint(2, 6),
        watermark=random.choice((0.0, 0.0, 0.04, 0.1)),
        full_sequence_must_fit=random.random() < 0.5,
        is_in_flight_capped=random.random() < 0.6,
        loads=random.random() < 0.35,
        defers_frees=steps_in_flight > 0 and random.random() < 0.4,
        drains_events_late=random.random() < 0.3,
        tells_computed=random.random() < 0.4,
        gives_hashes=random.random() < 0.3,
        decodes_in_batches=steps_in_flight == 0
        and num_draft_tokens == 0
        and random.random() < 0.7,
    )
    config = _over_ranks(random, config)
    config = _with_checkpoints(random, config)
    config = _with_partial_junctions(random, config)
    config = _with_short_chunks(random, config)
    if not _is_valid(config):
        return None
    return replace(config, num_blocks=1 + int(random.uniform(1.02, 1.45) * _peak_blocks(config)))


def _groups(random: Random) -> tuple[Group, ...]:
    base = random.choice((4, 4, 8, 16))
    kinds = random.choices(
        (*FULL, *WINDOWS, CHUNKED, STATE),
        (5, 2, 4, 2, 2, 4),
        k=random.choice((1, 2, 2, 3, 3, 4, 5)),
    )
    is_unequal = random.random() < 0.4
    is_mixed = random.random() < 0.2
    groups: list[Group] = []
    for kind in kinds:
        twins = [group for group in groups if group.kind is kind]
        if twins and random.random() < 0.4:
            groups.append(twins[0])
            continue
        block_size = base * random.choice((1, 2, 3, 4)) if is_unequal else base
        groups.append(
            Group(
                kind=kind,
                block_size=block_size,
                window=_window(random, block_size) if kind in WINDOWS else None,
                chunk=random.randint(1, 6 * block_size) if kind is CHUNKED else None,
                is_wide=is_mixed and kind is not STATE and random.random() < 0.6,
            )
        )
    return tuple(groups)


def _window(random: Random, block_size: int) -> int:
    """Any window, with those that only just need another block more often."""
    whole = block_size * random.randint(1, 5)
    return random.choice((1, 2, whole, whole + 1, whole + 2, random.randint(1, 8 * block_size)))


def _with_eagle(random: Random, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Flag all groups (the engine's fallback), or some that can hold a drafter's layers."""
    if random.random() < 0.65:
        return groups
    if all(group.kind is not CHUNKED for group in groups) and random.random() < 0.5:
        return tuple(replace(group, eagle=True) for group in groups)
    return tuple(
        replace(group, eagle=group.kind in (*FULL, *WINDOWS) and random.random() < 0.6)
        for group in groups
    )


def _over_ranks(random: Random, config: Config) -> Config:
    """Spread full groups over ranks, where their blocks can be cut, and keep the others whole; a
    full group may be a draft head's, which is kept whole, too."""
    num_ranks = random.choice((1, 1, 2, 4))
    groups = tuple(
        replace(
            group,
            is_replicated=group.kind in (*WINDOWS, CHUNKED)
            or (group.kind in FULL and random.random() < 0.2),
        )
        for group in config.groups
    )
    sharded = [group for group in groups if group.kind in FULL and not group.is_replicated]
    if num_ranks == 1 or any(group.block_size % num_ranks for group in sharded):
        return config
    return replace(config, groups=groups, num_ranks=num_ranks)


def _with_checkpoints(random: Random, config: Config) -> Config:
    if config.state_block_size is None or random.random() < 0.5:
        return config
    every = random.choice((1, config.hash_block_size, 2 * config.hash_block_size))
    return replace(config, checkpoint_alignment=every)


def _with_partial_junctions(random: Random, config: Config) -> Config:
    """The engine keeps them beside a drafter alone, and one of a single module."""
    can = config.partial_hits and config.use_eagle and not config.num_reprefillable_tokens
    return replace(config, partial_junctions=True) if can and random.random() < 0.6 else config


def _with_short_chunks(random: Random, config: Config) -> Config:
    """A state that no hit can end at is registered only if its step is under way in the next."""
    size = config.state_block_size or config.alignment
    if config.partial_hits or size >= config.alignment or random.random() < 0.25:
        return config
    return replace(
        config,
        retention=None,
        steps_in_flight=2,
        long_prefill_tokens=size,
        decodes_in_batches=False,
    )


def _retention(random: Random, groups: tuple[Group, ...], alignment: int) -> int | None:
    if not any(group.kind in WINDOWS or group.kind is STATE for group in groups):
        return random.choice((None, 0))
    return random.choice((None, None, 0, 0, alignment, 2 * alignment, 3 * alignment))


def _is_valid(config: Config) -> bool:
    """Chunked groups need blocks of the hit alignment, and cannot hold a drafter's layers."""
    hit_alignment = config.hash_block_size if config.partial_hits else config.alignment
    return config.alignment <= 64 and all(
        group.block_size == hit_alignment and not group.eagle
        for group in config.groups
        if group.kind is CHUNKED
    )


def _peak_blocks(config: Config) -> int:
    """Blocks that one request of the greatest length can come to hold."""
    in_flight = config.token_budget * (config.steps_in_flight + 1) + config.num_draft_tokens
    total = 0
    for group in config.groups:
        if group.kind is STATE:
            total += 4 + 2 * config.num_draft_tokens + (config.checkpoint_alignment is not None)
            continue
        kept = group.window or group.chunk or config.max_model_len
        tokens = min(config.max_model_len, kept + config.num_reprefillable_tokens + in_flight)
        total += -(-(tokens + config.num_draft_tokens) // group.block_size) + 1
    return total
