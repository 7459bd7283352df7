"""A device that is memory of this process: CUDA's runtime as callbacks, and streams with a log."""

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from kvbraid.layout import MemoryPlan
from kvbraid.layout.descriptors import Array
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover.cudart import CopyAttributes
from numpy.typing import NDArray

from tests.reference.mover_model import MoverModel
from tests.unit.transfer.pools import Pool

POINTER, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
OUT_OF_MEMORY = 2


class FakeLibrary(SimpleNamespace):
    """The functions of a libcudart of one version, with C's calling convention, over memmove.

    `calls` has what each copy was given besides arrays; `codes` what a function returns instead.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.calls: list[tuple[Any, ...]] = []
        self.codes: dict[str, int] = {}
        self.pinned: dict[int, int] = {}
        self.device = 0
        number = (ctypes.POINTER(INT),)
        self.cudaRuntimeGetVersion = self.function(number, lambda out: self.put(out, version))
        self.cudaDriverGetVersion = self.function(number, lambda out: self.put(out, 13_010))
        self.cudaSetDevice = self.function((INT,), self.set_device)
        self.cudaHostRegister = self.function((POINTER, SIZE, ctypes.c_uint), self.register)
        self.cudaHostUnregister = self.function((POINTER,), self.unregister)
        self.cudaMemcpyAsync = self.function((POINTER, POINTER, SIZE, INT, POINTER), self.copy)
        attributes = (ctypes.POINTER(CopyAttributes), ctypes.POINTER(SIZE), SIZE)
        if version >= 13_000:
            self.cudaMemcpyBatchAsync = self.function(
                (*[POINTER] * 3, SIZE, *attributes, POINTER), self.batch
            )
        elif version >= 12_080:
            self.cudaMemcpyBatchAsync = self.function(
                (*[POINTER] * 3, SIZE, *attributes, ctypes.POINTER(SIZE), POINTER), self.batch_12
            )

    def function(self, arguments: tuple[Any, ...], body: Callable[..., int]) -> Any:  # noqa: ANN401
        return ctypes.CFUNCTYPE(INT, *arguments)(body)

    def put(self, out: Any, value: int) -> int:  # noqa: ANN401
        out[0] = value
        return 0

    def set_device(self, device: int) -> int:
        self.device = device
        return 0

    def register(self, address: int, size: int, flags: int) -> int:
        self.calls.append(("register", self.device, flags))
        if code := self.codes.get("register"):
            return code
        self.pinned[address] = size
        return 0

    def unregister(self, address: int) -> int:
        del self.pinned[address]
        return 0

    def copy(self, target: int, source: int, length: int, kind: int, stream: int) -> int:
        self.calls.append(("copy", length, kind, stream))
        if code := self.codes.get("copy"):
            return code
        ctypes.memmove(target, source, length)
        return 0

    def batch_12(self, *values: Any) -> int:  # noqa: ANN401
        *before, failed_index, stream = values
        failed_index[0] = 0
        return self.batch(*before, stream)

    def batch(self, *values: Any) -> int:  # noqa: ANN401
        targets, sources, sizes, count, attributes, indexes, num_attributes, stream = values
        found = attributes[0]
        self.calls.append(
            ("batch", count, found.source_order, found.flags, indexes[0], num_attributes, stream)
        )
        if code := self.codes.get("batch"):
            return code
        arrays = [
            (ctypes.c_uint64 * count).from_address(each) for each in (targets, sources, sizes)
        ]
        for target, source, size in zip(*arrays, strict=True):
            ctypes.memmove(target, source, size)
        return 0


@dataclass(slots=True)
class FakeStreams:
    """Streams whose copies end when a test says so; `log` has what happened in which order."""

    log: list[str] = field(default_factory=list)
    ended: bool = True

    def begin(self, kind: Kind) -> int:
        self.log.append(f"begin {kind}")
        return 7

    def scope(self, kind: Kind) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self, kind: Kind) -> "FakeStreams":
        self.log.append(f"mark {kind}")
        return self

    def is_over(self) -> bool:
        return self.ended

    def wait(self) -> None:
        self.log.append("wait")


class FakeStaging:
    """Staging memory that the obvious model fills and empties."""

    def __init__(self, pool: Pool, size_bytes: int) -> None:
        self.pool, self.size_bytes = pool, size_bytes
        self.memory: NDArray[np.uint8] = np.zeros(size_bytes, np.uint8)
        self.address = self.memory.ctypes.data
        self.refused_group = -1
        self.most_blocks = 0

    def takes(self, group: int) -> bool:
        return group != self.refused_group

    def model(self) -> MoverModel:
        return MoverModel(self.pool.plan, self.pool.content, {})

    def collect(self, group: int, blocks: Array) -> None:
        self.most_blocks = max(self.most_blocks, len(blocks))
        model, begin = self.model(), 0
        for block in blocks.tolist():
            for at, run in model.runs(group, block):
                content = np.frombuffer(model.pool[at][run], np.uint8)
                self.memory[begin : begin + len(content)] = content
                begin += len(content)

    def spread(self, group: int, blocks: Array) -> None:
        self.most_blocks = max(self.most_blocks, len(blocks))
        begin, model = 0, self.model()
        for block in blocks.tolist():
            for at, run in model.runs(group, block):
                length = run.stop - run.start
                self.pool.inside(at)[run] = self.memory[begin : begin + length]
                begin += length


def used_bytes(plan: MemoryPlan) -> tuple[int, ...]:
    return tuple(group.used_bytes for group in plan.groups)
