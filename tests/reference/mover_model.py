"""What a mover does, byte by byte: a pool and an arena as byte strings, and three ways to copy."""

from collections.abc import Iterator

from kvbraid.layout import MemoryPlan


class MoverModel:
    """The pool of a plan, one byte string per buffer, and slots that hold a block each."""

    def __init__(self, plan: MemoryPlan, pool: list[bytes], slots: dict[int, bytes]) -> None:
        self.plan = plan
        self.pool = [bytearray(each) for each in pool]
        self.slots = {slot: bytearray(content) for slot, content in slots.items()}

    def store(self, group: int, block: int, slot: int) -> None:
        """A slot begins with the block's runs, one after the other."""
        content = b"".join(self.pool[at][run] for at, run in self.runs(group, block))
        self.slots[slot][: len(content)] = content

    def load(self, group: int, slot: int, block: int) -> None:
        """The same the other way round."""
        begin = 0
        for at, run in self.runs(group, block):
            end = begin + run.stop - run.start
            self.pool[at][run] = self.slots[slot][begin:end]
            begin = end

    def copy(self, group: int, source: int, target: int) -> None:
        """Each run of a block goes to the same run of another."""
        for (at, read), (_, written) in zip(
            self.runs(group, source), self.runs(group, target), strict=True
        ):
            self.pool[at][written] = self.pool[at][read]

    def runs(self, group: int, block: int) -> Iterator[tuple[int, slice]]:
        """Yield the buffer and the range of each run of a block."""
        for reference in self.plan.groups[group].references:
            for offset, length in reference.exact():
                start = block * reference.block_stride + offset
                yield reference.buffer, slice(start, start + length)
