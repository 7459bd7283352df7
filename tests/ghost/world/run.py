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

ROUNDS: Final = ((1, 1), (2, 2))
"""How many loads begin and how many troubles come in one life, from round to round."""
MOST_STATES: Final = 150_000
"""In one world; the states that wait to be moved from have to fit into memory."""


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


def searched(seconds: float) -> Iterator[Searched]:
    deadline = time.monotonic() + seconds
    tasks = [
        (setting, deadline)
        for loads, troubles in ROUNDS
        for setting in settings(num_loads=loads, num_troubles=troubles)
    ]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        yield from pool.imap(search, tasks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ghost.world.run")
    parser.add_argument("--seconds", type=float, default=7_200)
    states, whole, worlds = Counter[str](), Counter[int](), Counter[int]()
    num_bad = 0
    for each in searched(parser.parse_args().seconds):
        states[each.setting.pair] += each.states
        worlds[each.setting.num_troubles] += 1
        whole[each.setting.num_troubles] += each.is_complete
        num_bad += len(each.bad)
        for bad in each.bad:
            print(told(each.setting, bad), flush=True)
    for pair, count in states.items():
        print(f"{pair}: {count} states")
    for loads, troubles in ROUNDS:
        share = f"{whole[troubles]} of {worlds[troubles]} worlds are exhausted"
        print(f"loads: {loads}, troubles: {troubles}: {share}")
    world = {
        "pairs": dict(states),
        "states": states.total(),
        "bad": num_bad,
        "complete": whole == worlds,
    }
    print(json.dumps({"world": world}), flush=True)
    return 1 if num_bad else 0


def told(setting: Setting, bad: Bad) -> str:
    return "\n    ".join([bad.problem, str(setting), *bad.path])


if __name__ == "__main__":
    sys.exit(main())
