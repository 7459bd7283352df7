"""Bytes of blocks from one memory to another: ids in, copies out, and who carries them out.

In reading order:

    runs     what is copied, as arrays of addresses and lengths
    rows     copies in the memory of the CPU
    moving   from ids of blocks and slots to copies
"""

from kvbraid.transfer.mover.moving import (
    MOVES,
    CopyEngine,
    Done,
    HostMemoryEngine,
    Move,
    Mover,
    Pending,
)

__all__ = ["MOVES", "CopyEngine", "Done", "HostMemoryEngine", "Move", "Mover", "Pending"]
