"""Writes what `kvbraid recover` prints for the state that docs/recovery.md shows into that page.

`python -m tests.docs.recovery_page` rewrites it; test_recovery_page.py checks that it is current.
"""

import json
import re
from pathlib import Path
from typing import Final

from kvbraid.recovery import read
from kvbraid.report.recovery import recovery_json, recovery_text

from tests.docs.markdown import ROOT, blocks

PAGE: Final = ROOT / "docs" / "recovery.md"
_INNERMOST: Final = re.compile(r"([\[{])\s+([^\[\]{}]*?)\s+([\]}])")


def rendered(page: Path) -> str:
    """Return the page with the two outputs as they are now."""
    state, explained = (block.text for block in blocks(page) if block.language == "json")
    sentences = next(
        block.text for block in blocks(page) if block.text.lstrip().startswith(("Tainted", "EXPL"))
    )
    found = read(state.encode())
    plan = found.decide(max_refusals=64)
    as_json = json.dumps(recovery_json(found, plan), indent=2)
    for _ in range(2):  # Short lists and objects stand on one line each.
        as_json = _INNERMOST.sub(lambda m: m[1] + " ".join(m[2].split()) + m[3], as_json)
    text = page.read_text()
    text = text.replace(f"```json\n{explained}```", f"```json\n{as_json}\n```")
    return text.replace(f"```text\n{sentences}```", f"```text\n{recovery_text(found, plan)}\n```")


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE))
