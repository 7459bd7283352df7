"""Random engines: the groups of a cache, its pool and retention, and how the engine runs steps.

Blocks have two to four tokens and pools are small, so that everything is evicted, preempted and
shared all the time. Each draw has a group of the kind that it is asked for.
"""

from math import lcm
from random import Random
from typing import Final

from kvbraid.cache import ByValue, CacheConfig, Dense, GroupOptions, Interval, Retention
from kvbraid.spec import GroupSpec, SpecKind, Topology

KINDS: Final = (
    SpecKind.FULL_ATTENTION,
    SpecKind.MLA_ATTENTION,
    SpecKind.SLIDING_WINDOW,
    SpecKind.CHUNKED_LOCAL_ATTENTION,
    SpecKind.MAMBA,
)
PARTIAL_SHARE: Final = 0.15
"""The share of caches in which hits may end inside a block."""
RATIOS: Final = ((1,), (1,), (1, 2), (2, 1))


def draw_group(random: Random, kind: SpecKind, size: int, *, eagle: bool) -> GroupSpec:
    is_chunked = kind is SpecKind.CHUNKED_LOCAL_ATTENTION
    return GroupSpec(
        kind=kind,
        block_size=size,
        window=random.randint(1, 3 * size) if kind.is_window else None,
        chunk=random.randint(size + 1, 5 * size) if is_chunked else None,
        eagle=eagle and not is_chunked and kind is not SpecKind.MAMBA,
        variant=random.choice((0, 0, 1)),
    )


def draw_topology(random: Random, focus: SpecKind) -> Topology:
    """One to four groups; the first is of the kind `focus`."""
    unit = random.choice((2, 2, 3, 4))
    kinds = [focus]
    if random.random() < 0.7:
        kinds.append(random.choice((SpecKind.FULL_ATTENTION, SpecKind.MLA_ATTENTION)))
    kinds += random.choices(KINDS, k=random.choice((0, 0, 1, 1, 2)))
    ratios = random.choice(RATIOS)
    eagle = random.random() < 0.15
    groups = tuple(
        draw_group(
            random, kind, unit * random.choice(ratios), eagle=eagle and random.random() < 0.5
        )
        for kind in kinds
    )
    if len(groups) == 1:
        return Topology(groups=groups)
    alignment = lcm(*(group.block_size for group in groups))
    return Topology(groups=groups, alignment=alignment, hash_block_size=unit)


def draw_partial(random: Random, focus: SpecKind) -> Topology:
    """Groups whose hits may end inside a block, because a state's block is longer than a hash.
    Full groups allow that with blocks of any size, all others with blocks as long as a hash."""
    unit, others = random.choice((1, 2, 2, 3)), random.choices(KINDS, k=random.choice((0, 0, 1)))
    kinds = [focus, *others]
    if SpecKind.MAMBA not in kinds:
        kinds.append(SpecKind.MAMBA)
    ratios = {
        SpecKind.MAMBA: (2,),
        SpecKind.FULL_ATTENTION: (1, 2),
        SpecKind.MLA_ATTENTION: (1, 2),
    }
    eagle = random.random() < 0.3
    groups = tuple(
        draw_group(random, kind, unit * random.choice(ratios.get(kind, (1,))), eagle=eagle)
        for kind in kinds
    )
    alignment = lcm(*(group.block_size for group in groups))
    return Topology(groups=groups, alignment=alignment, hash_block_size=unit, partial_hits=True)


def draw_retention(random: Random, topology: Topology) -> Retention:
    alignment = topology.alignment or topology.groups[0].block_size
    is_sparse = any(g.kind.is_window or g.kind is SpecKind.MAMBA for g in topology.groups)
    match random.choice(("dense", "dense", "interval", "by value")):
        case "dense":
            return Dense()
        case "interval":
            return Interval(random.choice((0, 1, 2)) * alignment if is_sparse else 0)
        case _:
            return ByValue(interval=random.choice((0, 2)) * alignment)


def draw_cache(random: Random, focus: SpecKind, num_blocks: int) -> CacheConfig:
    is_partial = random.random() < PARTIAL_SHARE
    topology = (draw_partial if is_partial else draw_topology)(random, focus)
    zeroing = random.random() < 0.5
    return CacheConfig(
        topology=topology,
        num_blocks=num_blocks,
        hash_seed="0",
        events=True,
        retention=draw_retention(random, topology),
        group_options=tuple(GroupOptions(needs_zeroing=zeroing) for _ in topology.groups),
    )
