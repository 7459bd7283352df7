"""Which vLLM this package works with: the one it was run against, and no other.

The scheduler's way of using its cache is no public interface: it changes from release to release.
Nothing here imports more of vLLM than its version.
"""

from typing import Final

import vllm

from kvbraid.errors import UnsupportedError

SERIES: Final = "0.32"


def check_version(version: str = vllm.__version__) -> None:
    """Refuse any other series.

    Raises:
        UnsupportedError: Names the version that is installed and the one to install.
    """
    if version.split(".")[:2] != SERIES.split("."):
        raise UnsupportedError(
            f"vLLM {version} is installed; kvbraid's cache runs in vLLM {SERIES} alone: install "
            f"vllm=={SERIES}.0, or start vLLM without --scheduler-cls"
        )
