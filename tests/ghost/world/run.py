"""Searches all small worlds, as far as the seconds go: `python -m tests.ghost.world.run`.

Two processes share the worlds. Those with one load and one trouble come first, so that they are
searched whole before worlds with more of both. The last line counts states by pair of kinds.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.ghost.world.search import Bad, Search
from tests.ghost.world.settings import Setting, settings
from tests.ghost.world.world import begin

ROUNDS: Final = ({"num_loads": 1, "num_troubles": 1}, {"num_loads": 2, "num_troubles": 2})
"""How much begins and goes wrong in one life, from round to round."""
MOST_STATES: Final = 2_000_000
"""In one world; more would not fit into memory."""


class Searched(NamedTuple):
    """What came of one world."""

    setting: Setting
    states: int
    bad: list[Bad]
    is_complete: bool


def search(task: tuple[Setting, float]) -> Searched:
    setting, deadline = task
    if time.monotonic() > deadline:
        return Searched(setting, 0, [], False)
    is_late = lambda: time.monotonic() > deadline  # noqa: E731 - a question, not a function
    found = Search(begin(setting), max_states=MOST_STATES, is_late=is_late).run()
    return Searched(setting, found.states, found.bad, found.is_complete)


def searched(rounds: int, seconds: float) -> Iterator[Searched]:
    deadline = time.monotonic() + seconds
    tasks = [(s, deadline) for limits in ROUNDS[:rounds] for s in settings(**limits)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        yield from pool.imap(search, tasks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=7_200)
    parser.add_argument("--rounds", type=int, default=len(ROUNDS))
    options = parser.parse_args()
    states, cut, num_bad = Counter[str](), Counter[str](), 0
    for each in searched(options.rounds, options.seconds):
        states[each.setting.pair] += each.states
        cut[each.setting.pair] += not each.is_complete
        num_bad += len(each.bad)
        for bad in each.bad:
            print(told(each.setting, bad), flush=True)
    for pair, count in states.items():
        print(f"{pair}: {count} states, {cut[pair]} worlds cut short", flush=True)
    world = {
        "pairs": dict(states),
        "states": states.total(),
        "bad": num_bad,
        "complete": not cut.total(),
    }
    print(json.dumps({"world": world}), flush=True)
    return 1 if num_bad else 0


def told(setting: Setting, bad: Bad) -> str:
    return "\n    ".join([bad.problem, str(setting), *bad.path])


if __name__ == "__main__":
    sys.exit(main())
