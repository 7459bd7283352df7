"""One configuration in lock-step: the engine's manager against another side.

A run ends at the first difference.

Also a command: `python -m tests.vllm.lockstep.run NUMBER...` runs configurations of our cache
against the engine's and prints how each ends.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.vllm.lockstep.compare import MismatchError, Pair
from tests.vllm.lockstep.configs import Config, generate
from tests.vllm.lockstep.driver import Driver
from tests.vllm.lockstep.shrink import report, shrink
from tests.vllm.lockstep.side import Side
from tests.vllm.lockstep.theirs import Theirs

MakeSide: TypeAlias = Callable[[Config], Side]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. `failure` is a report for people, or None."""

    config: Config
    num_operations: int
    num_pressed: int
    failure: str | None


def run(config: Config, make_right: MakeSide, *, num_operations: int, seed: int) -> Outcome:
    """Drive the engine's manager and the right side; stop at the first difference."""

    def make_pair() -> Pair:
        return Pair(
            Theirs(config), make_right(config), drains_events_late=config.drains_events_late
        )

    pair = make_pair()
    failure = None
    try:
        Driver(config, pair, seed=seed).run(num_operations)
    except MismatchError as mismatch:
        log, smaller = shrink(pair.log, mismatch, make_pair)
        failure = f"{config}, seed {seed}: {mismatch}\nshrunk:\n{report(log, smaller)}"
    return Outcome(
        config=config,
        num_operations=len(pair.log),
        num_pressed=pair.num_pressed,
        failure=failure,
    )


def main(numbers: list[int]) -> None:
    from tests.vllm.lockstep.ours import Ours

    for number in numbers:
        outcome = run(generate(number), Ours, num_operations=1_000, seed=0)
        result = outcome.failure or f"{outcome.num_operations} operations agree"
        sys.stdout.write(f"{number}: {result}\n")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
