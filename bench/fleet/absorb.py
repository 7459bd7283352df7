"""A process that applies a stream from standard input to an index, and says how much it grew.

`bench_memory.py` runs it as a process, so nothing else of the benchmark is in its memory. A frame
is the pod and the length as little-endian uint32, then the payload. The argument is the number of
windows that pods have beside a group of full attention.
"""

import json
import os
import struct
import sys

from kvbraid.spec import GroupSpec, SpecKind

from bench.fleet.ours import FULL, accounted_bytes, new_index, pod_name
from bench.fleet.streams import MIX_WINDOW, Batch
from bench.harness.measure import rss_bytes_of_process

WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=MIX_WINDOW)
_HEAD = struct.Struct("<II")


def frame(message: Batch) -> bytes:
    """Encode one batch for this process."""
    return _HEAD.pack(message.pod, len(message.payload)) + message.payload


def main() -> None:
    """Apply everything, then print the growth of resident memory."""
    index = new_index(FULL, *[WINDOW] * int(sys.argv[1]))
    begin = rss_bytes_of_process(os.getpid())
    while head := sys.stdin.buffer.read(_HEAD.size):
        pod, length = _HEAD.unpack(head)
        applied = index.apply(pod_name(pod), sys.stdin.buffer.read(length))
        assert not applied.refused, applied.refused
    grown = rss_bytes_of_process(os.getpid()) - begin
    print(json.dumps({"grown_bytes": grown, "accounted_bytes": accounted_bytes(index)}))


if __name__ == "__main__":
    main()
