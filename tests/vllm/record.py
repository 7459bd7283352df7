"""Asks the installed engine about every case: `python -m tests.vllm.record` writes its answers.

To be run in the environment of `make test-vllm`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.architectures import CASES, PATH
from tests.vllm.engine_process import ENVIRONMENT

PROGRAM: Final = Path(__file__).with_name("engine_layers.py")


def answers() -> dict[str, dict[str, Any]]:
    """Return what the engine says to each case, by name."""
    lines = "".join(json.dumps(case["config"]) + "\n" for case in CASES.values())
    cache = str(Path(sys.prefix) / "engine-cache")
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        input=lines,
        stdout=subprocess.PIPE,
        env=os.environ | ENVIRONMENT | {"VLLM_CACHE_ROOT": cache},
        text=True,
        check=True,
    )
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


def text_of(cases: dict[str, dict[str, Any]]) -> str:
    """Return the file's text: a row per case."""
    rows = [f" {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main() -> None:
    """Write the answers; a case that cannot be built keeps its reason."""
    found = answers()
    cases = {
        name: case if "error" in found[name] else {"config": case["config"], **found[name]}
        for name, case in CASES.items()
    }
    PATH.write_text(text_of(cases))


if __name__ == "__main__":
    main()
