"""Bytes of blocks from one memory to another: ids in, copies out, and who carries them out.

In reading order:

    runs     what is copied, as arrays of addresses and lengths
    rows     copies in the memory of the CPU
    moving   from ids of blocks and slots to copies, and moves in memory of the CPU
    calibration   which mechanism is fastest on this device
    cudart   the calls of CUDA's runtime
    device   moves in memory of a device, direct or staged
    cuda     a CUDA device through torch, imported by name
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
