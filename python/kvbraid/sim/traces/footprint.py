"""The ideal footprint: the blocks that hold everything that could ever be reused, and no others.

A conversation at its final length has every block of the full groups, one window of each window
group, one chunk of each chunked group and one state of each state group. Blocks that conversations
share are counted once. The working set of a trace is the footprint of all its conversations
together; a policy that keeps exactly this set reuses everything.
"""

from dataclasses import dataclass
from math import lcm

from kvbraid.resume import needed_blocks
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.sim.traces.prefix_hashes import num_leading
from kvbraid.sim.traces.trace import Trace
from kvbraid.spec import GroupSpec


@dataclass(frozen=True, slots=True)
class Footprint:
    """The working set of a trace for one model, in blocks of its pool, without the null block."""

    num_conversations: int
    num_tokens: int  # Of distinct prefixes.
    num_blocks: int


def tail_blocks(groups: tuple[GroupSpec, ...], boundary: int) -> int:
    """Return the blocks that a resume at `boundary` reads in all groups except the full ones."""
    return sum(len(needed_blocks(group, boundary)) for group in groups if not group.kind.is_full)


def ideal_blocks(groups: tuple[GroupSpec, ...], num_tokens: int) -> int:
    """Return the ideal footprint of one conversation that shares nothing."""
    full = sum(num_tokens // group.block_size for group in groups if group.kind.is_full)
    alignment = lcm(*(group.block_size for group in groups))
    return full + tail_blocks(groups, num_tokens // alignment * alignment)


def footprint(trace: Trace, model: SimulatedModel) -> Footprint:
    """Play a trace and add up its working set."""
    groups, size = model.topology.groups, model.alignment
    full = [group.block_size for group in groups if group.kind.is_full]
    seen: set[int] = set()
    final: dict[int, int] = {}  # Known tokens of each conversation's last prompt.
    num_tokens = num_blocks = 0
    for request in trace.play():
        known = num_leading(request.ids, seen.__contains__)
        covered, counted = len(request.ids) * trace.block_tokens, known * trace.block_tokens
        num_tokens += covered - counted
        num_blocks += sum(covered // block - counted // block for block in full)
        seen.update(request.ids[known:])
        final[request.conversation] = covered
    tails = sum(tail_blocks(groups, tokens // size * size) for tokens in final.values())
    return Footprint(len(final), num_tokens, num_blocks + tails)
