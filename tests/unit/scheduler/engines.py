"""An engine for tests of the scheduler: tiers that offer, a device that samples by a formula."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kvbraid.cache import CacheManager, Events
from kvbraid.ids import BlockId
from kvbraid.loads import Failures, Record
from kvbraid.scheduler import (
    Load,
    LoadReport,
    Offer,
    Output,
    Query,
    Scheduler,
    SchedulerOptions,
    Step,
    StepResult,
)
from kvbraid.spec import GroupSpec

from tests.unit.cache.caches import config

Answer = Callable[[Query], Offer | None]


@dataclass
class Tiers:
    """Answers by a function, and remembers what it was told."""

    answer: Answer = lambda _: None
    forgotten: list[BlockId] = field(default_factory=list)
    dropped: list[Record] = field(default_factory=list)
    backed_off: list[Record] = field(default_factory=list)

    def lookup(self, query: Query) -> Offer | None:
        return self.answer(query)

    def forget_blocks(self, block_ids: Collection[BlockId]) -> Failures:
        self.forgotten += block_ids
        return Failures()

    def drop(self, record: Record) -> None:
        self.dropped.append(record)

    def back_off(self, record: Record) -> None:
        self.backed_off.append(record)


def sampled(num_tokens: int) -> int:
    """The token after so many: every request goes on in the same way."""
    return 1_000 + num_tokens


class Engine:
    """A scheduler with its cache; integrity is checked after every call."""

    def __init__(
        self,
        *groups: GroupSpec,
        answer: Answer = lambda _: None,
        cache: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - fields of the options
    ) -> None:
        self.cache = CacheManager(config(*groups, **(cache or {})))
        self.tiers = Tiers(answer)
        self.options = SchedulerOptions(**{"max_step_tokens": 64, **options})
        self.events: list[Events] = []
        self.scheduler = Scheduler(
            self.cache, self.options, self.tiers, publish=self.events.append
        )
        self.steps: list[Step] = []
        self.loads: dict[int, Load] = {}
        self.said: dict[int, list[Output]] = {}

    def add(self, prompt: Sequence[int], num_tokens: int = 2, **more: Any) -> int:  # noqa: ANN401
        request = self.scheduler.add(prompt, max_new_tokens=num_tokens, **more)
        self.said[request] = []
        self.check()
        return request

    def schedule(self) -> Step | None:
        step = self.scheduler.schedule()
        if step is not None:
            self.steps.append(step)
            self.loads.update({load.number: load for load in step.loads})
        self.check()
        return step

    def update(
        self, reports: Sequence[LoadReport] | None = None, accepted: Callable[[], int] = lambda: 99
    ) -> list[Output]:
        """End the oldest step. By default all ranks have ended its synchronous loads well."""
        step = self.steps.pop(0)
        if reports is None:
            reports = self.ended([load.number for load in step.loads if not load.is_async])
        tokens = {}
        for part in step.scheduled:
            if part.samples:
                count = 1 + min(part.num_drafts, accepted())
                known = self.num_tokens(part.request)
                tokens[part.request] = [sampled(known + n) for n in range(count)]
        return self.note(self.scheduler.update(step, StepResult(tokens=tokens, reports=reports)))

    def num_tokens(self, request: int) -> int:
        known = self.scheduler.inspect().requests.get(request)
        return known.num_tokens if known else 0

    def report(self, reports: Sequence[LoadReport]) -> list[Output]:
        return self.note(self.scheduler.report(reports))

    def abort(self, request: int) -> None:
        self.note([self.scheduler.abort(request)])

    def ended(self, loads: Collection[int]) -> list[LoadReport]:
        return [LoadReport(rank=rank, ended=loads) for rank in range(self.options.num_ranks)]

    def note(self, outputs: list[Output]) -> list[Output]:
        for output in outputs:
            self.said[output.request].append(output)
        self.check()
        return outputs

    def check(self) -> None:
        self.scheduler.check_integrity()

    def run(self, most: int = 1_000) -> None:
        """Go on until nobody is left; loads that wait end well."""
        for _ in range(most):
            if not self.scheduler.num_requests:
                return
            step = self.schedule()
            if step is None and not self.steps:
                waiting = [load.number for load in self.scheduler.ledgers.transfers.loads]
                assert waiting, "nothing to do, and nothing to wait for"
                self.report(self.ended(waiting))
            if self.steps and (
                step is None or len(self.steps) == self.options.max_steps_in_flight
            ):
                self.update()
        raise AssertionError("it does not end")

    def tokens(self, request: int) -> list[int]:
        return [token for output in self.said[request] for token in output.tokens]


def prompts(random: Random, count: int, length: int) -> list[list[int]]:
    """Prompts that share stems."""
    made: list[list[int]] = [[]]
    for _ in range(count):
        stem = random.choice(made)
        stem = stem[: random.randint(0, len(stem))]
        made.append([*stem, *(random.randrange(3) for _ in range(random.randint(1, length)))])
    return made[1:]
