"""How soon is a pod that was met late exact again, if the size of its engine's pool is known?

`make study ONLY=late` plays recorded lives of vLLM to an index that sees nothing of the first 10,
30 or 50 % of their messages. Every request after that is predicted and compared with what the
engine reused. `TRACES=folder` names a folder with captures; without it, those of the tests are
played.
"""

import json
from array import array
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
from kvbraid.events import BlockStored, decode
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex, IndexOptions, Keys
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.sim.captures.read import CacheReset, Capture, Lookup, read_capture

from bench.studies.policies import Study

FIXTURES: Final = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "captures"
CUTS: Final = (10, 30, 50)
"""The shares of the messages that are lost, in percent."""

TURNOVERS: Final = (1, 2, 4)
"""Where the classes end: so many times the blocks of the pool were stored since the loss."""

CLASSES: Final = ("under 1", "1 to 2", "2 to 4", "4 and more")
FULL_REPORTS: Final = frozenset({"sched_k_reportfull"})
"""Captures of an engine that announces reused blocks again, which no file of theirs says."""

POD: Final = PodId("pod")


@dataclass(slots=True)
class Tally:
    """What was found of a capture: requests and exact answers by turnovers until the first reset.

    `width` adds up upper - lower, and `prompt` what could be reused at most, both in tokens.
    `wrong` counts the answers of all requests whose truth lies outside the bounds, but for those
    of `late_clear` (the engine had emptied its cache and not said so yet) and `in_flight` (the
    truth is within the bounds with the events that were not published yet).
    """

    capture: str
    uncounted: str = ""
    asked: Counter[int] = field(default_factory=Counter)
    exact: Counter[int] = field(default_factory=Counter)
    width: Counter[int] = field(default_factory=Counter)
    prompt: Counter[int] = field(default_factory=Counter)
    checked: int = 0
    wrong: int = 0
    late_clear: int = 0
    in_flight: int = 0

    def add(self, other: "Tally") -> None:
        """Add what was found with another cut, or of another capture."""
        self.asked.update(other.asked)
        self.exact.update(other.exact)
        self.width.update(other.width)
        self.prompt.update(other.prompt)
        for name in ("checked", "wrong", "late_clear", "in_flight"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class Start:
    """An index that is started when the first messages of a capture are gone."""

    capture: Capture
    num_gpu_blocks: int
    first: int
    keys: Keys = "auto"

    def index(self) -> "LateIndex":
        """Start it."""
        index = FleetIndex(IndexOptions(keys=self.keys))
        mode = "full" if self.capture.name in FULL_REPORTS else "incremental"
        engine = replace(self.capture.engine, num_gpu_blocks=self.num_gpu_blocks, report_mode=mode)
        topology, loras = self.capture.topology, self.capture.loras
        index.register(POD, model="m", topology=topology, engine=engine, loras=loras)
        index.lose(POD)
        index.set_state(POD, PodState.DEGRADED, reason="lost")
        return LateIndex(self.capture, index, self.first)


@dataclass(slots=True)
class LateIndex:
    """Such an index, and how much of the capture it has seen."""

    capture: Capture
    index: FleetIndex
    seen: int
    num_stored: int = 0
    is_cleared: bool = False

    def follow(self, until: int) -> None:
        """Take the messages that had been published by then, as the service does."""
        for message in self.capture.messages[self.seen : until]:
            self.apply(message.payload)
        self.seen = max(self.seen, until)

    def apply(self, payload: bytes) -> None:
        """Take one batch."""
        applied = self.index.apply(POD, payload)
        self.num_stored += applied.stored
        if applied.cleared:
            self.is_cleared = True
            self.index.set_state(POD, PodState.EXACT)

    def ask(self, lookup: Lookup) -> PodScore:
        """Predict a request."""
        request = Request(
            model="m",
            token_ids=memoryview(array("Q", lookup.token_ids)),
            lora=lookup.lora,
            cache_salt=lookup.cache_salt,
            tiers=self.capture.tiers,
        )
        return self.index.score(request).rows[0]


def run(study: Study) -> int:
    """Play all captures and write the page; return the exit status."""
    folders = captures_in(study.traces) or captures_in(FIXTURES)
    with ProcessPoolExecutor(study.num_jobs) as pool:
        tallies = list(pool.map(tally, folders))
    lines = page(tallies)
    (study.folder / "late.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 1 if any(found.wrong for found in tallies) else 0


def captures_in(folder: Path) -> list[Path]:
    """Return the captures of vLLM in a folder."""
    configs = sorted(folder.glob("*/config.json"))
    return [config.parent for config in configs if num_blocks_of(config.parent)]


def num_blocks_of(folder: Path) -> int:
    """Return the blocks of the recorded engine's pool; 0 for an engine without one."""
    config = json.loads((folder / "config.json").read_bytes())
    return int(config.get("num_blocks") or 0)


def tally(folder: Path, keys: Keys = "auto") -> Tally:
    """Play one capture with each cut."""
    capture, num_blocks = read_capture(folder), num_blocks_of(folder)
    found = Tally(capture.name, uncounted(capture))
    for cut in CUTS:
        first = len(capture.messages) * cut // 100
        found.add(play(Start(capture, num_blocks, first, keys)))
    return found


def uncounted(capture: Capture) -> str:
    """Return why the entries of a capture cannot be counted; empty if they can."""
    if capture.name in FULL_REPORTS:
        return "full reports"
    if capture.topology.partial_hits:
        return "partial hits"
    groups = capture.topology.groups
    events = (event for m in capture.messages for event in decode(m.payload).events)
    stored = (event for event in events if isinstance(event, BlockStored))
    is_inside = any(0 < e.block_size < groups[e.group_idx or 0].block_size for e in stored)
    return "entries inside blocks" if is_inside else ""


def play(start: Start) -> Tally:
    """Play the rest of a capture to an index that was started late."""
    found, late = Tally(start.capture.name), start.index()
    is_reset_unseen = False
    for operation in start.capture.operations:
        if isinstance(operation, CacheReset):
            is_reset_unseen = True
            continue
        if operation.messages_seen >= start.first:
            late.follow(operation.messages_seen)
            row = late.ask(operation)
            found.checked += 1
            if not late.is_cleared:
                turnovers = late.num_stored / (start.num_gpu_blocks - 1)
                which = sum(turnovers >= end for end in TURNOVERS)
                found.asked[which] += 1
                found.exact[which] += row.exactness == "exact"
                found.width[which] += row.upper - row.lower
                found.prompt[which] += len(operation.token_ids) - 1
            if not holds(row, operation):
                if is_reset_unseen and operation.reused_tokens == 0:
                    found.late_clear += 1
                elif is_in_flight(start, operation):
                    found.in_flight += 1
                else:
                    found.wrong += 1
        is_reset_unseen = False
    return found


def holds(row: PodScore, lookup: Lookup) -> bool:
    """Whether the truth is within the bounds."""
    return row.lower <= lookup.reused_tokens <= row.upper


def is_in_flight(start: Start, lookup: Lookup) -> bool:
    """Whether the truth is within the bounds once the events are known that were not published."""
    late = start.index()
    late.follow(lookup.messages_seen)
    if lookup.unpublished:
        payload = start.capture.messages[lookup.messages_seen].payload
        ts, events, *rest = msgspec.msgpack.decode(payload)
        late.apply(msgspec.msgpack.encode([ts, events[: lookup.unpublished], *rest]))
    return holds(late.ask(lookup), lookup)


def page(tallies: Sequence[Tally]) -> list[str]:
    """Return the lines of the page."""
    counted = [found for found in tallies if not found.uncounted]
    total = Tally(f"all {len(counted)}")
    for found in counted:
        total.add(found)
    others = "; ".join(
        f"{found.capture} ({found.uncounted})" for found in tallies if found.uncounted
    )
    return [
        "# How soon a pod that was met late is exact again",
        "",
        "Written by `make study ONLY=late`; do not edit by hand. Recorded lives of vLLM are",
        "played to an index that lacks the first 10, 30 and 50 % of the messages and knows",
        "`num_gpu_blocks`. A cell is the share of answers that are exact, in percent, and of",
        "how many, until the engine is reset. Its column says how often the pool had turned",
        "over: the blocks stored since the loss, divided by those of the pool. The last row is",
        "the mean of upper - lower; without `num_gpu_blocks` no answer is exact. `checked`",
        "counts all answers until the end, and `wrong` those whose truth lies outside the",
        "bounds. Two columns count the cases in which the engine had not told yet: it had",
        "emptied its cache (`late clear`), or had more events to publish (`in flight`).",
        "",
        f"| capture | {' | '.join(CLASSES)} | checked | wrong | late clear | in flight |",
        "|---|" + "--:|" * (len(CLASSES) + 4),
        *map(line, counted),
        line(total),
        width(total),
        "",
        f"Not counted, because a block can have several entries or none: {others}. Wrong there: "
        f"{sum(found.wrong for found in tallies if found.uncounted)}.",
    ]


def line(found: Tally) -> str:
    """Return a row of the table."""
    shares = (
        f"{100 * found.exact[which] / asked:.1f} of {asked}"
        if (asked := found.asked[which])
        else "-"
        for which in range(len(CLASSES))
    )
    counts = (found.checked, found.wrong, found.late_clear, found.in_flight)
    return f"| {found.capture} | {' | '.join(shares)} | {' | '.join(map(str, counts))} |"


def width(found: Tally) -> str:
    """Return a row with the mean width of the bounds, in percent of the prompt."""
    means = (
        f"{100 * found.width[which] / tokens:.1f}" if (tokens := found.prompt[which]) else "-"
        for which in range(len(CLASSES))
    )
    return f"| width, % of the prompt | {' | '.join(means)} | | | | |"
