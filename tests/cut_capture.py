"""Cuts a capture to its first operations: `python -m tests.cut_capture FROM TO OPERATIONS`.

The messages and pieces that are kept are those that came before the end of the last operation.
What the engine's tree looked like at each look-up (`path`) is left out: it is long, and no
indexer can know it.
"""

import json
import lzma
import shutil
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from kvbraid.sim.captures.read import read_capture


def cut(source: Path, target: Path, operations: int) -> None:
    """Write the first operations of a capture to another folder."""
    rows = lzma.decompress((source / "requests.jsonl.xz").read_bytes()).splitlines()[:operations]
    kept = [
        {name: value for name, value in json.loads(row).items() if name != "path"} for row in rows
    ]
    capture = read_capture(source)
    frames = capture.messages[: max(row.get("ev_after", 0) for row in kept)]
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "config.json", target)
    write(target / "requests.jsonl.xz", (json.dumps(row).encode() + b"\n" for row in kept))
    write(
        target / "events.bin.xz",
        (
            struct.pack(">I", 3) + b"".join(map(sized, (m.topic, m.seq.to_bytes(8), m.payload)))
            for m in frames
        ),
    )
    if capture.pieces:
        last = max(row["admitted"]["pieces"] for row in kept)
        write(target / "pieces.bin.xz", map(sized, capture.pieces[:last]))


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def write(path: Path, parts: Iterable[bytes]) -> None:
    path.write_bytes(lzma.compress(b"".join(parts), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
