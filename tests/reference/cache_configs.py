"""Random caches for tests: any mix of kinds, small blocks, pools that evict all the time."""

from dataclasses import replace
from math import lcm

from hypothesis import strategies as st
from kvbraid.cache import CacheConfig, Dense, GroupOptions, Interval, Retention
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

SHARED = (
    SpecKind.FULL_ATTENTION,
    SpecKind.MLA_ATTENTION,
    SpecKind.SINK_FULL_ATTENTION,
    SpecKind.SLIDING_WINDOW,
    SpecKind.SLIDING_WINDOW_MLA,
    SpecKind.CHUNKED_LOCAL_ATTENTION,
    SpecKind.MAMBA,
)
RATIOS = ((1,), (1, 2), (2, 1, 4), (2, 3), (1, 3))
Row = tuple[GroupSpec, GroupOptions]


@st.composite
def shared_group(draw: st.DrawFn, unit: int, ratios: tuple[int, ...], partial: bool) -> Row:
    """A group whose prefixes are reused; with partial hits, only full and state groups have
    blocks of more than the unit."""
    kind = draw(st.sampled_from(SHARED))
    is_coarse = not partial or kind.is_full or kind is SpecKind.MAMBA
    size = unit * (draw(st.sampled_from(ratios)) if is_coarse else 1)
    is_chunked, is_state = kind is SpecKind.CHUNKED_LOCAL_ATTENTION, kind is SpecKind.MAMBA
    spec = GroupSpec(
        kind=kind,
        block_size=size,
        window=draw(st.integers(1, 4 * size + 1)) if kind.is_window else None,
        chunk=draw(st.integers(1, 4 * size)) if is_chunked else None,
        eagle=not is_chunked and not is_state and draw(st.sampled_from((False, False, True))),
        variant=draw(st.sampled_from((0, 0, 0, 1))),
    )
    options = GroupOptions(
        num_speculative_blocks=draw(st.sampled_from((0, 0, 1, 2))) if is_state else 0,
        extra_retained_tokens=draw(st.sampled_from((0, 0, 3))) if kind.is_window else 0,
        needs_zeroing=draw(st.booleans()),
        checkpoint_alignment=draw(st.sampled_from((None, 1, unit, 2 * unit)))
        if is_state
        else None,
    )
    return spec, options


@st.composite
def unshared_group(draw: st.DrawFn, unit: int) -> Row:
    """Cross attention, a ring, or a group that the engine marks as not cacheable."""
    zeroing = draw(st.booleans())
    match draw(st.sampled_from(("cross", "ring", "full", "window"))):
        case "cross":
            kind, window, is_ring = SpecKind.CROSS_ATTENTION, None, False
        case "ring":
            kind, window, is_ring = SpecKind.FULL_ATTENTION, None, True
        case "full":
            kind, window, is_ring = SpecKind.MLA_ATTENTION, None, False
        case _:
            kind, window, is_ring = SpecKind.SLIDING_WINDOW, draw(st.integers(1, 9)), False
    spec = GroupSpec(kind=kind, block_size=unit, window=window, prefix_cacheable=False)
    return spec, GroupOptions(is_ring=is_ring, needs_zeroing=zeroing)


@st.composite
def mixes(draw: st.DrawFn, *, extras: bool, ends_inside: bool) -> tuple[list[Row], int, bool]:
    """Groups, their hash block, and whether hits end inside blocks, for which the engine users run
    has to have states."""
    unit, ratios = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from(RATIOS))
    partial = ends_inside or draw(st.sampled_from((False, False, True)))
    least = 2 if ends_inside else 1
    rows = draw(st.lists(shared_group(unit, ratios, partial), min_size=least, max_size=4))
    rows += draw(st.sampled_from(([], [], rows[:1])))
    rows += draw(st.sampled_from(([], [], [draw(unshared_group(unit))])))
    rows = draw(st.permutations(rows))
    if partial and (not extras or draw(st.booleans())):
        state = GroupSpec(kind=SpecKind.MAMBA, block_size=unit * draw(st.sampled_from((2, 3))))
        rows.append((state, GroupOptions()))
    if len(rows) == 1:
        return rows, rows[0][0].block_size, False
    return rows, unit, partial and len(rows) > 1


@st.composite
def retentions(draw: st.DrawFn, specs: list[GroupSpec], alignment: int) -> Retention:
    if draw(st.booleans()):
        return Dense()
    is_sparse = any(spec.kind.is_window or spec.kind is SpecKind.MAMBA for spec in specs)
    return Interval(draw(st.sampled_from((0, 1, 2, 3))) * alignment if is_sparse else 0)


def as_the_engine_has_it(spec: GroupSpec, rows: list[Row]) -> GroupSpec:
    """Chunks are whole blocks, and no other group has blocks of another size."""
    if spec.kind is not SpecKind.CHUNKED_LOCAL_ATTENTION:
        return spec
    if any(other.block_size != spec.block_size for other, _ in rows):
        return GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=spec.block_size)
    chunk = -(-(spec.chunk or 1) // spec.block_size) * spec.block_size
    return replace(spec, chunk=chunk)


@st.composite
def cache_configs(
    draw: st.DrawFn,
    dialect: EngineDialect = EngineDialect.PURE,
    *,
    extras: bool = True,
    ends_inside: bool = False,
) -> CacheConfig:
    """`extras`: also what the engine that users run does not have; `ends_inside`: only hits that
    end inside blocks."""
    rows, unit, partial = draw(mixes(extras=extras, ends_inside=ends_inside))
    if not extras:
        rows = [(as_the_engine_has_it(spec, rows), options) for spec, options in rows]
    specs = [spec for spec, _ in rows]
    alignment = lcm(*(spec.block_size for spec in specs))
    if extras and len(specs) > 1:
        alignment *= draw(st.sampled_from((1, 1, 2)))
    # What is replayed must be held: states and chunks are not, a few tokens before a hit's end.
    replayable = all(spec.kind.is_full or spec.kind.is_window for spec in specs)
    replay = 0 if not replayable or not extras else draw(st.sampled_from((0, 0, 0, 3)))
    again = draw(st.sampled_from((0, 0, 1, 2)))
    topology = Topology(
        groups=tuple(specs),
        alignment=alignment,
        hash_block_size=unit,
        partial_hits=partial,
        replay_tokens=replay,
        hash_lookahead=draw(st.sampled_from((0, 0, 0, 2))) if extras else 0,
    )
    return CacheConfig(
        topology=topology,
        dialect=dialect,
        hash_seed="0",
        num_blocks=draw(st.sampled_from((8, 30, 60, 120, 250))),
        group_options=tuple(options for _, options in rows),
        caching=draw(st.sampled_from((True, True, True, True, False))),
        events=True,
        retention=draw(retentions(specs, alignment)),
        max_model_len=draw(st.sampled_from((64, 1 << 20))),
        max_in_flight_tokens=draw(st.sampled_from((None, None, 4, 12))),
        watermark=draw(st.sampled_from((0.0, 0.0, 0.1))),
        num_reprefillable_tokens=min(again, alignment - 1),
        partial_junctions=partial and not again and draw(st.booleans()),
    )


BOTH_DIALECTS = st.one_of(cache_configs(), cache_configs(EngineDialect.VLLM, extras=False))
