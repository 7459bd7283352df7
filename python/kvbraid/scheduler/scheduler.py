"""The scheduler: requests come, steps are scheduled, results are taken, requests end.

No call reads a clock, waits, or does I/O. A call either does what it says, or raises and changes
nothing.

```text
add --> waiting --> running <--> loading     a request ends from anywhere: its last token was
           ^------ preempted ------'         sampled, it is aborted, or recovery ends it
```
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from kvbraid.cache import CacheManager, Events
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.ids import BlockId
from kvbraid.loads import NO_TIERS, LoadReport, LoadTiers
from kvbraid.recovery import State
from kvbraid.recovery.ledger.counts import PromptCounts
from kvbraid.recovery.ledger.state import RecoveryState
from kvbraid.scheduler.options import SchedulerOptions
from kvbraid.scheduler.planning import StepPlan
from kvbraid.scheduler.recovery import take_reports
from kvbraid.scheduler.request_table import RequestTable, ScheduledRequest
from kvbraid.scheduler.step import Finish, Output, Scheduled, Step, StepResult


class Scheduler:
    """Schedules the requests of one engine over its cache, from which nobody else allocates.

    ```text
    scheduler.add(prompt, max_new_tokens=100)
    while scheduler.num_requests:
        step = scheduler.schedule()              # None: only reports on loads can change that
        ...                                      # The device computes; see `step`.
        outputs = scheduler.update(step, StepResult(tokens=sampled, reports=reports))
    ```

    `publish` is called with the events of a step or call that has any; `dump` with the state of
    each recovery, before it is decided. Options that do not fit the cache: InvalidValueError.
    """

    def __init__(
        self,
        cache: CacheManager,
        options: SchedulerOptions,
        tiers: LoadTiers = NO_TIERS,
        *,
        publish: Callable[[Events], object] = lambda _: None,
        dump: Callable[[State], object] | None = None,
    ) -> None:
        options.check(cache.config)
        self._cache: Final = cache
        self._publish: Final = publish
        self._is_pipelined: Final = options.max_steps_in_flight > 1
        self.ledgers: Final = RecoveryState(cache, tiers, options, dump)
        self._table: Final = RequestTable(cache, options, tiers, self.ledgers)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._table.requests)

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        stop_tokens: Collection[int] = (),
        extra: ExtraKeys = NO_EXTRA_KEYS,
        lora_id: int | None = None,
        number: int | None = None,
    ) -> int:
        """Queue a request and return its number; `number` if the cache has given it one already.

        It ends with `max_new_tokens` or one of the `stop_tokens`; without any new tokens it ends
        when the prompt is computed. `extra` and `lora_id` are those of `CacheManager.add`.

        Raises:
            InvalidValueError: The prompt is empty, or the request may get longer than the cache's
                `max_model_len`.
        """
        count, most = len(prompt), self._cache.config.max_model_len
        if not count or max_new_tokens < 0 or count + max_new_tokens > most:
            what = f"the prompt has {count} tokens, and {max_new_tokens} may follow"
            raise InvalidValueError(f"{what}; expected 1 or more, 0 or more, {most} at most")
        if number is None:
            number = self._cache.add(prompt, extra=extra, lora_id=lora_id)
        request = ScheduledRequest(
            number=number,
            prompt=prompt,
            extra=extra,
            max_tokens=count + max_new_tokens,
            stop_tokens=stop_tokens,
            counts=PromptCounts(count),
        )
        self._table.requests[number] = request
        self._table.waiting.append(request)
        return number

    def abort(self, request: int) -> Output:
        """End a request now, whatever it is doing.

        Raises:
            UnknownError: It has ended, or was never added.
        """
        if request not in self._table.requests:
            raise UnknownError(f"request {request} has ended, or was never added")
        self._table.end(self._table.requests[request], Output(request, finish=Finish.ABORTED))
        self._publish_events()
        return self._table.outputs.pop()

    def schedule(self) -> Step | None:
        """Return the next step; None if there is nothing to do before a load has ended.

        Raises:
            InvalidValueError: As many steps are in flight as may be.
        """
        table, num_in_flight = self._table, len(self._table.steps)
        if num_in_flight >= table.options.max_steps_in_flight:
            msg = f"{num_in_flight} steps are in flight, as many as may be: update the oldest"
            raise InvalidValueError(msg)
        self._cache.start_step()
        plan = StepPlan(table)
        plan.fill()
        if not (plan.scheduled or plan.loads or table.outputs):
            return None
        step = Step(
            number=table.num_steps,
            scheduled=tuple(plan.scheduled),
            loads=tuple(plan.loads),
            work=self.ledgers.take_work(caller_frees=self._is_pipelined),
        )
        table.steps.append(step)
        table.num_steps += 1
        return step

    def update(self, step: Step, result: StepResult) -> list[Output]:
        """Take what came of the oldest step in flight: first the reports on loads, then tokens.

        Raises:
            InvalidValueError: It is not the oldest, a request has no tokens or too many, or a rank
                is silent about a synchronous load. Nothing has changed.
        """
        table = self._table
        if not table.steps or table.steps[0] is not step:
            oldest = table.steps[0].number if table.steps else "none"
            raise InvalidValueError(f"step {step.number} ends, but the oldest is {oldest}")
        self._check_tokens(step, result)
        synchronous = [load for load in step.loads if not load.is_async]
        self.ledgers.transfers.check(result.reports, synchronous)
        table.steps.popleft()
        take_reports(table, result.reports)
        for part in step.scheduled:
            request = table.requests.get(part.request)
            if request is not None and request.in_flight.pop(step.number, None) is not None:
                self._process(request, part, result.tokens.get(part.request, ()))
        self.ledgers.processed(step.number, table.running)
        if self._is_pipelined:
            self._cache.pool.free([block for copy in step.work.copies for block in copy])
        return self._take_outputs()

    def report(self, reports: Sequence[LoadReport]) -> list[Output]:
        """Take reports on loads apart from any step.

        Raises:
            InvalidValueError: A rank or a load is not known; nothing has changed.
        """
        self.ledgers.transfers.check(reports)
        take_reports(self._table, reports)
        return self._take_outputs()

    def _check_tokens(self, step: Step, result: StepResult) -> None:
        for part in step.scheduled:
            request = self._table.requests.get(part.request)
            count = len(result.tokens.get(part.request, ()))
            least, most = (1, 1 + part.num_drafts) if part.samples else (0, 0)
            counts = request is not None and step.number in request.in_flight
            if counts and not least <= count <= most:
                what = f"{count} tokens for request {part.request}; expected {least} to {most}"
                raise InvalidValueError(f"step {step.number} has {what}")

    def _process(self, request: ScheduledRequest, part: Scheduled, tokens: Sequence[int]) -> None:
        """Take over the tokens of a step; its request may have given its blocks back since."""
        number = request.number
        if number in self._table.running:
            num_rejected = part.num_drafts + 1 - len(tokens)
            if part.samples and num_rejected:
                request.num_computed -= num_rejected
                self._cache.roll_back(number, request.num_computed)
            if request.delays_commit:  # All that the load brought is known to be good by now.
                # Steps in flight move a state inside a block on.
                unit = self._table.rules.alignment if request.in_flight else 1
                end = min(request.num_processed, request.num_tokens) // unit * unit
                self._cache.commit(number, end)
                request.delays_commit = False
            request.counts.computed(request.num_processed)
            self.ledgers.owners.processed(number, request.num_processed)
        stop = next((n for n, token in enumerate(tokens, 1) if token in request.stop_tokens), None)
        new = tuple(tokens[:stop])
        if new:
            request.outputs += new
            self._cache.extend(number, new)
            if number not in self._table.running:
                self.ledgers.released.told(number, request.num_tokens)
        is_computed = bool(new) or request.num_processed >= len(request.prompt)
        is_long = is_computed and request.num_tokens >= request.max_tokens
        finish = Finish.STOP if stop else Finish.LENGTH if is_long else None
        if new or finish:
            output = Output(number, new, finish, prompt=request.counts.report())
            self._table.end(request, output) if finish else self._table.outputs.append(output)

    def _take_outputs(self) -> list[Output]:
        self._publish_events()
        outputs, self._table.outputs = self._table.outputs, []
        return outputs

    def _publish_events(self) -> None:
        if events := self._cache.take_events():
            self._publish(events)

    def inspect(self) -> RequestTable:
        """Return the requests and the steps in flight as they are, for tests and for people."""
        return self._table

    def check_integrity(self, outside: Sequence[BlockId] = ()) -> None:
        """Panic unless the scheduler, its ledgers and the cache agree.

        `outside` has a block for each reference that somebody else holds, as a tier does.
        """
        self._table.check_integrity(outside)
