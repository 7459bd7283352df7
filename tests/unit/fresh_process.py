"""Programs in a process that has imported nothing yet."""

import subprocess
import sys


def fresh(program: str) -> list[str]:
    """Return the lines that a program prints in a process that has imported nothing before."""
    command = [sys.executable, "-W", "error", "-c", f"import sys\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


PLANNED = """
from kvbraid.layout import Layout, LayoutGroup, LayoutLayer, from_json, geometry_of, to_json
from kvbraid.layout import plan_memory
from kvbraid.models.pages import Page
from kvbraid.models.shapes import Heads
from kvbraid.spec import SpecKind
heads = Heads(num=2, key_dim=8, value_dim=8, dtype="bfloat16")
page = Page(kind=SpecKind.FULL_ATTENTION, block_size=16, shape=heads)
geometry = geometry_of(Layout.HND, heads, 16)
layers = tuple(LayoutLayer(name=name, page=page, geometry=geometry) for name in "abc")
groups = [LayoutGroup(kind=page.kind, block_size=16, layers=layers)]
plan = plan_memory(groups, num_blocks=3)
print(plan.block_bytes)
"""


def blocked(*names: str) -> str:
    """Make every import of these modules fail from now on."""
    return f"sys.modules.update(dict.fromkeys({names!r}))"
