"""One configuration in lock-step: the engine's manager against another side.

A run ends at the first difference.

Also a command: `python -m tests.vllm.lockstep.run SEED NUMBER...` runs configurations of our
cache against the engine's and prints how each ends.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.vllm.lockstep.compare import EngineFailedError, MismatchError, Pair
from tests.vllm.lockstep.configs import Config, generate
from tests.vllm.lockstep.driver import Driver
from tests.vllm.lockstep.shrink import report, shrink
from tests.vllm.lockstep.side import Side
from tests.vllm.lockstep.theirs import Theirs

MakeSide: TypeAlias = Callable[[Config], Side]


@dataclass(slots=True)
class Outcome:
    """How a run ended. `failure` is a report for people, or None."""

    config: Config
    num_operations: int = 0
    num_pressed: int = 0
    num_engine_failures: int = 0
    num_early_copies: int = 0  # See `unwritten`.
    failure: str | None = None


def run(config: Config, make_right: MakeSide, *, num_operations: int, seed: int) -> Outcome:
    """Drive the engine's manager and the right side; stop at the first difference.

    Where the engine itself fails, both sides start anew with another seed.
    """

    def pair_with(theirs: Theirs) -> Pair:
        return Pair(theirs, make_right(config), drains_events_late=config.drains_events_late)

    outcome = Outcome(config)
    while outcome.failure is None and outcome.num_operations < num_operations:
        theirs = Theirs(config)
        pair = pair_with(theirs)
        life = f"{seed}.{outcome.num_engine_failures}"
        try:
            Driver(config, pair, seed=life).run(num_operations - outcome.num_operations)
        except EngineFailedError:
            outcome.num_engine_failures += 1
        except MismatchError as mismatch:
            log, smaller = shrink(pair.log, mismatch, lambda: pair_with(Theirs(config)))
            outcome.failure = f"{config}, seed {life}: {mismatch}\nshrunk:\n{report(log, smaller)}"
        outcome.num_operations += len(pair.log)
        outcome.num_pressed += pair.num_pressed
        outcome.num_early_copies += theirs.num_early_copies
    return outcome


def main(seed: int, numbers: list[int]) -> None:
    from tests.vllm.lockstep.ours import Ours

    for number in numbers:
        outcome = run(generate(number), Ours, num_operations=1_000, seed=seed)
        result = outcome.failure or f"{outcome.num_operations} operations agree"
        sys.stdout.write(f"{number}: {result}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(argument) for argument in sys.argv[2:]])
