"""A loop around memcpy, compiled when it is asked for: what copies of rows are compared with."""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

COMPILER: Final = shutil.which("cc")
SOURCE: Final = """
#include <stdint.h>
#include <string.h>
void copy_all(const uint64_t *from, const uint64_t *to, const uint64_t *length, size_t count) {
    for (size_t i = 0; i < count; i++)
        memcpy((void *)to[i], (const void *)from[i], length[i]);
}
"""

Addresses = NDArray[np.uint64]


def native_loop() -> Callable[[Addresses, Addresses, Addresses], None]:
    """Return a function of sources, targets and lengths that copies all rows in order."""
    assert COMPILER is not None  # The rows that need it say so.
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "copy.c", Path(folder) / "copy.so"
        source.write_text(SOURCE)
        subprocess.run([COMPILER, "-O2", "-shared", "-fPIC", "-o", built, source], check=True)
        function = ctypes.CDLL(str(built)).copy_all
    pointer = ctypes.c_void_p
    function.argtypes, function.restype = (pointer, pointer, pointer, ctypes.c_size_t), None

    def copy(sources: Addresses, targets: Addresses, lengths: Addresses) -> None:
        function(sources.ctypes.data, targets.ctypes.data, lengths.ctypes.data, len(lengths))

    return copy
