"""What was promised to a rank, boundary by boundary: the model of `FleetIndex.promise`."""

from collections.abc import Iterable
from math import lcm
from typing import NamedTuple

from kvbraid.ids import Tier
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference import resume as rule
from tests.reference.fleet_index import Prefix, RankModel


class Promise(NamedTuple):
    """A prompt on its way to a rank."""

    prompt: Prefix
    junction: int
    sparse_windows: bool

    def kept(self, topology: Topology) -> list[int]:
        """Where states will be had: at the junction, and where a resume is expected.

        If the engine keeps sparsely, the same prompt resumes there, and that computes its last
        token. Otherwise a longer one does. A draft head drops a unit of a hit.
        """
        grid = lcm(
            topology.alignment or 1, *(g.block_size for g in topology.groups if g.prefix_cacheable)
        )
        length = len(self.prompt.tokens)
        last = (length - self.sparse_windows) // grid * grid
        drafted = [g for g in topology.groups if g.prefix_cacheable and g.eagle]
        if drafted:
            last = max(length // grid * grid - grid, 0)
        dropped = max((g.block_size for g in drafted if g.kind.is_full), default=0)
        junction = max(self.junction - dropped, 0) // grid * grid
        return sorted({min(junction, last), last} - {0})

    def blocks(self, topology: Topology, group: GroupSpec, request: Prefix) -> set[int]:
        """The boundaries of a request at which a block of a group will end."""
        size = group.block_size
        is_sparse = group.kind is SpecKind.MAMBA or (self.sparse_windows and group.kind.is_window)
        if not is_sparse:
            ends = range(size, len(self.prompt.tokens) + 1, size)
            return {end for end in ends if self.prompt.cut(end).is_prefix_of(request)}
        found = set[int]()
        for end in self.kept(topology):
            if self.prompt.cut(end).is_prefix_of(request):
                found |= {(block + 1) * size for block in rule.needed_blocks(group, end)}
        return {end for end in found if self.prompt.cut(end).is_prefix_of(request)}

    def is_fulfilled(self, rank: RankModel) -> bool:
        """Whether every group holds the last boundary of all groups."""
        last = [self.prompt.cut(end) for end in self.kept(rank.topology)[-1:]]
        held = {
            (key.group, rank.meaning[key.block_hash]) for key in +rank.copies if not key.is_partial
        }
        return bool(last) and all((g, last[0]) in held for g in range(len(rank.topology.groups)))


def coming(rank: RankModel, promises: Iterable[Promise], request: Prefix) -> tuple[int, int]:
    """The tokens that a rank can reuse, and has, once it holds what is promised as well."""
    held = rank.held(request, [Tier.GPU])
    for promise in promises:
        for group, own in zip(rank.topology.groups, held, strict=True):
            own.update(promise.blocks(rank.topology, group, request))
    num_tokens = len(request.tokens)
    return (
        rule.resume(rank.topology, num_tokens, held),
        rule.present(rank.topology, num_tokens, held),
    )
