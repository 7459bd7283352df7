"""Checks the version of vLLM: this package works only with the one that it was tested against.

The interface between the scheduler and its cache is not public and changes from release to
release. This module imports nothing of vLLM except its version.
"""

from typing import Final

import vllm

from kvbraid.errors import UnsupportedError

SERIES: Final = "0.32"


def check_version(version: str = vllm.__version__) -> None:
    """Refuse any other release series of vLLM.

    Raises:
        UnsupportedError: The message names the installed version and the one to install.
    """
    if version.split(".")[:2] != SERIES.split("."):
        raise UnsupportedError(
            f"vLLM {version} is installed; kvbraid's cache runs only in vLLM {SERIES}: install "
            f"vllm=={SERIES}.0, or start vLLM without --scheduler-cls"
        )
