"""A model whose states may be kept inside blocks."""

from kvbraid.spec import GroupSpec, SpecKind, Topology

STATES_INSIDE = Topology(
    groups=(
        GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),
        GroupSpec(kind=SpecKind.MAMBA, block_size=16),
    ),
    hash_block_size=4,
    alignment=16,
    partial_hits=True,
)
