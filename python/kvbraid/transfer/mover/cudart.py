"""The calls of CUDA's runtime that torch has none for, through the library that torch loaded.

    cudaMemcpyAsync          one run                    every version
    cudaMemcpyBatchAsync     arrays of runs in a call   12.8 and 12.9 (9 arguments), 13 (8 of them)
    cudaHostRegister         memory that a device reads and writes by itself

Invariant: arrays are passed as they are, every call names its stream, never the default one, and
every error code raises. This module imports no torch: a library of the same functions will do.
"""

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvbraid.errors import UnsupportedError
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.mover.runs import Copies

PLAIN: Final = "plain"
BATCH: Final = "batch"

FIRST_WITH_BATCH: Final = 12_080
FIRST_WITHOUT_FAILED_INDEX: Final = 13_000

_DEFAULT_KIND: Final = 4  # cudaMemcpyDefault: addresses say where they are.
_PORTABLE: Final = 1  # cudaHostRegisterPortable
_PREFER_OVERLAP: Final = 1  # cudaMemcpyFlagPreferOverlapWithCompute
_IN_STREAM_ORDER: Final = 1  # cudaMemcpySrcAccessOrderStream
_IN_ANY_ORDER: Final = 3  # cudaMemcpySrcAccessOrderAny

ORDER: Final[Mapping[Kind, int]] = {
    Kind.STORE: _IN_STREAM_ORDER,
    Kind.COPY: _IN_STREAM_ORDER,
    Kind.LOAD: _IN_ANY_ORDER,
}
"""When a source may be read. What the device writes must be read after that, in stream order; a
slot keeps its bytes as long as its job runs."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class CopyAttributes(ctypes.Structure):
    """cudaMemcpyAttributes."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", ctypes.c_uint),
    )


_POINTER: Final = ctypes.c_void_p
_SIZE: Final = ctypes.c_size_t
_COPY: Final = (_POINTER, _POINTER, _SIZE, ctypes.c_int, _POINTER)
_ATTRIBUTES: Final = (ctypes.POINTER(CopyAttributes), ctypes.POINTER(_SIZE), _SIZE)
_BATCH_13: Final = (_POINTER, _POINTER, _POINTER, _SIZE, *_ATTRIBUTES, _POINTER)
_BATCH_12: Final = (*_BATCH_13[:-1], ctypes.POINTER(_SIZE), _POINTER)


class CudaRuntime:
    """The runtime's calls, as far as this library has them.

    `library` has functions as `ctypes.CDLL` has.

    Attributes:
        version: Of the runtime: 12080 is 12.8.
        copies: What copies runs: for each mechanism a function of copies, kind and stream. It
            returns before they have ended.
    """

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a library's functions are its own.
        self._library = library
        self._copy = self._function("cudaMemcpyAsync", _COPY)
        self._set_device = self._function("cudaSetDevice", (ctypes.c_int,))
        self._register = self._function("cudaHostRegister", (_POINTER, _SIZE, ctypes.c_uint))
        self._unregister = self._function("cudaHostUnregister", (_POINTER,))
        self.version: Final = self._number("cudaRuntimeGetVersion")
        self.copies: Final[dict[str, Callable[[Copies, Kind, int], None]]] = {
            PLAIN: self._copy_one_by_one
        }
        if self.version >= FIRST_WITH_BATCH:
            has_index = self.version < FIRST_WITHOUT_FAILED_INDEX
            self._batch = self._function(
                "cudaMemcpyBatchAsync", _BATCH_12 if has_index else _BATCH_13
            )
            self._failed_index = (ctypes.byref(_SIZE()),) if has_index else ()
            self.copies[BATCH] = self._copy_in_one_call

    def pin(self, device: int, address: int, size_bytes: int) -> None:
        """Let a device read and write a range by itself.

        Raises:
            RuntimeError: It cannot; the limit of locked memory is the usual reason.
        """
        self._set_device(device)  # Of this thread: it would be device 0, and get a context there.
        self._register(address, size_bytes, _PORTABLE)

    def unpin(self, device: int, address: int) -> None:
        """Undo `pin`."""
        self._set_device(device)
        self._unregister(address)

    def driver_version(self) -> int:
        """Return the newest version of CUDA that the driver knows."""
        return self._number("cudaDriverGetVersion")

    def _copy_one_by_one(self, copies: Copies, kind: Kind, stream: int) -> None:
        del kind
        rows = zip(
            copies.targets.tolist(), copies.sources.tolist(), copies.lengths.tolist(), strict=True
        )
        for target, source, length in rows:
            self._copy(target, source, length, _DEFAULT_KIND, stream)

    def _copy_in_one_call(self, copies: Copies, kind: Kind, stream: int) -> None:
        if not len(copies):
            return
        attributes = CopyAttributes(source_order=ORDER[kind], flags=_PREFER_OVERLAP)
        arrays = [
            np.ascontiguousarray(each).ctypes.data_as(_POINTER)  # It keeps its array alive.
            for each in (copies.targets, copies.sources, copies.lengths)
        ]
        self._batch(
            *arrays,
            len(copies),
            ctypes.byref(attributes),
            ctypes.byref(_SIZE(0)),
            1,
            *self._failed_index,
            stream,
        )

    def _number(self, name: str) -> int:
        number = ctypes.c_int()
        self._function(name, (ctypes.POINTER(ctypes.c_int),))(ctypes.byref(number))
        return number.value

    def _function(self, name: str, arguments: tuple[Any, ...]) -> Callable[..., None]:
        """Return a function that raises what its error code says."""
        found = getattr(self._library, name)
        found.argtypes, found.restype = arguments, ctypes.c_int

        def call(*values: object) -> None:
            code = found(*values)
            if code:
                raise RuntimeError(f"{name}: error {code} of CUDA")

        return call


class DevicePinning:
    """Pins memory for one device, and remembers whether that ever failed.

    Attributes:
        has_failed: There is memory that is not pinned: copies to and from it go one by one, as
            the driver then copies through memory of its own.
    """

    def __init__(self, runtime: CudaRuntime, device: int) -> None:
        self.has_failed = False
        self._runtime: Final = runtime
        self._device: Final = device

    def pin(self, address: int, size_bytes: int) -> None:
        """Pin a range, or remember that it is not, and raise."""
        try:
            self._runtime.pin(self._device, address, size_bytes)
        except RuntimeError:
            self.has_failed = True
            raise

    def unpin(self, address: int) -> None:
        """Undo `pin`."""
        self._runtime.unpin(self._device, address)


def loaded_library(maps: str | None = None) -> ctypes.CDLL:
    """Return the runtime that this process has loaded already: torch brings its own.

    `maps` is the text of /proc/self/maps.

    Raises:
        UnsupportedError: None is loaded.
    """
    text = Path("/proc/self/maps").read_text() if maps is None else maps
    paths = (line.split(maxsplit=5)[-1] for line in text.splitlines() if "/libcudart" in line)
    found = next((path for path in paths if Path(path).name.startswith("libcudart.so")), None)
    if found is None:
        msg = "no libcudart is loaded; use a torch that is built for CUDA, and import it first"
        raise UnsupportedError(msg)
    return ctypes.CDLL(found)
