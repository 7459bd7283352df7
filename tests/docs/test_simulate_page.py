"""The tables of docs/simulate.md are those of the code."""

import re
from itertools import groupby
from pathlib import Path

from kvbraid.models import CONFIGS
from kvbraid.sim.traces.models import SimulatedModel, simulated_model
from kvbraid.sim.traces.policies import CACHE_POLICIES
from kvbraid.sim.traces.read import FORMS
from kvbraid.sim.traces.sessions import MAX_IDLE_S, NUM_ACTIVE
from kvbraid.sim.traces.simulation import CHUNK_TOKENS

TEXT = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")


def row(model: SimulatedModel) -> str:
    kinds = [
        f"{g.kind.value} {g.window}" if g.window else g.kind.value for g in model.topology.groups
    ]
    groups = ", ".join(f"{len(list(same))} x {kind}" for kind, same in groupby(kinds))
    return f"| `{model.name}` | {groups} | {model.alignment} | {model.block_bytes:,} |"


def test_the_models_are_those_of_the_code() -> None:
    section = TEXT.split("\n## Models\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `.*$", section, re.MULTILINE)
    assert listed == [row(simulated_model(name)) for name in CONFIGS]


def test_the_policies_are_those_of_the_code() -> None:
    section = TEXT.split("\n## Policies\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE) == list(CACHE_POLICIES)


def test_the_forms_of_traces_are_those_of_the_code() -> None:
    section = TEXT.split("\n## Traffic\n")[1].split("\n## ")[0]
    assert re.findall(r"\(`(\w+)`\) \|", section) == [name for name, _ in FORMS]


def test_the_figures_in_the_text_are_the_constants() -> None:
    assert f"chunks of {CHUNK_TOKENS:,}".replace(",", " ") in TEXT
    assert f"played {NUM_ACTIVE} at a time" in TEXT
    assert f"capped at {MAX_IDLE_S:.0f} s" in TEXT
