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

from kvbraid.cache import CacheManager, Events, Work
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.recovery.counts import PromptCounts
from kvbraid.recovery.transfers import LoadReport
from kvbraid.scheduler.book import Book
from kvbraid.scheduler.loads import NO_TIERS, LoadTiers
from kvbraid.scheduler.options import SchedulerOptions
from kvbraid.scheduler.planning import StepPlan
from kvbraid.scheduler.recovery import Dump, judge
from kvbraid.scheduler.requests import Request
from kvbraid.scheduler.step import Finish, Output, Scheduled, Step, StepResult


class Scheduler:
    """Schedules the requests of one engine over its cache.

    ```text
    scheduler.add(prompt, max_new_tokens=100)
    while scheduler.num_requests:
        step = scheduler.schedule()              # None: only reports on loads can change that
        ...                                      # The device computes; see `step`.
        outputs = scheduler.update(step, StepResult(tokens=sampled, reports=reports))
    ```

    Args:
        cache: The cache; nobody else allocates from it.
        options: The settings.
        tiers: Where blocks can be loaded from.
        publish: Called with the events of each step, of each abort and of each report.
        dump: Called with the state of each recovery, before it is decided.

    Raises:
        InvalidValueError: The options do not fit the cache.
    """

    def __init__(
        self,
        cache: CacheManager,
        options: SchedulerOptions,
        tiers: LoadTiers = NO_TIERS,
        *,
        publish: Callable[[Events], object] = lambda _: None,
        dump: Dump | None = None,
    ) -> None:
        config = cache.config
        options.check(config)
        self._cache: Final = cache
        self._options: Final = options
        self._publish: Final = publish
        self._dump: Final = dump
        self._book: Final = Book(cache, options, tiers)

    # Requests come and go.

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._book.requests)

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        stop_tokens: Collection[int] = (),
        extra: ExtraKeys = NO_EXTRA_KEYS,
        lora_id: int | None = None,
    ) -> int:
        """Queue a request and return its number.

        Args:
            prompt: At least one token.
            max_new_tokens: It ends with so many; 0: it ends when the prompt is computed.
            stop_tokens: It ends when one of these is sampled.
            extra: What keeps its blocks apart.
            lora_id: The engine's number of the adapter, for events.

        Raises:
            InvalidValueError: The prompt is empty, or the request may get longer than the cache's
                `max_model_len`.
        """
        self._check_length(len(prompt), max_new_tokens)
        request = self._cache.add(prompt, extra=extra, lora_id=lora_id)
        self.adopt(request, prompt, max_new_tokens, stop_tokens=stop_tokens, extra=extra)
        return request

    def adopt(
        self,
        request: int,
        prompt: Sequence[int],
        max_new_tokens: int,
        *,
        stop_tokens: Collection[int] = (),
        extra: ExtraKeys = NO_EXTRA_KEYS,
    ) -> None:
        """Queue a request that the cache knows already, in the same way as `add`."""
        self._check_length(len(prompt), max_new_tokens)
        known = Request(
            number=request,
            prompt=prompt,
            extra=extra,
            max_tokens=len(prompt) + max_new_tokens,
            stop_tokens=stop_tokens,
            counts=PromptCounts(len(prompt)),
        )
        self._book.requests[request] = known
        self._book.waiting.append(known)

    def abort(self, request: int) -> Output:
        """End a request now, whatever it is doing.

        Raises:
            UnknownError: It has ended, or was never added.
        """
        known = self._book.requests.get(request)
        if known is None:
            raise UnknownError(f"request {request} has ended, or was never added")
        self._book.end(known, Output(request, finish=Finish.ABORTED))
        self._take_events()
        return self._book.outputs.pop()

    def _check_length(self, num_prompt_tokens: int, max_new_tokens: int) -> None:
        if num_prompt_tokens < 1:
            raise InvalidValueError("the prompt has 0 tokens; give at least one")
        limit = self._cache.config.max_model_len
        if max_new_tokens < 0 or num_prompt_tokens + max_new_tokens > limit:
            raise InvalidValueError(
                f"{max_new_tokens} new tokens after a prompt of {num_prompt_tokens}; expected at "
                f"least 0, and at most {limit} with the prompt"
            )

    # A step.

    def schedule(self) -> Step | None:
        """Return the next step; None if there is nothing to do before a load has ended.

        Raises:
            InvalidValueError: As many steps are in flight as may be, or a tier offers a load that
                ends where no request can go on.
        """
        book = self._book
        if len(book.steps) >= self._options.max_steps_in_flight:
            raise InvalidValueError(
                f"{len(book.steps)} steps are in flight, as many as may be: update the oldest"
            )
        self._cache.start_step()
        plan = StepPlan(book)
        plan.fill()
        if not (plan.scheduled or plan.loads or book.outputs):
            return None
        work = self._take_work()
        step = Step(
            number=book.num_steps,
            scheduled=tuple(plan.scheduled),
            loads=tuple(plan.loads),
            work=work,
        )
        book.steps.append(step)
        book.num_steps += 1
        return step

    def _take_work(self) -> Work:
        """Take the step's work. What a load fills is not zeroed, although a recovery may have
        listed it before its request gave it back."""
        pipelined = self._options.max_steps_in_flight > 1
        work = self._cache.take_work(caller_frees=True) if pipelined else self._cache.take_work()
        writers = self._book.transfers.writers
        zeroed = [block for block in work.blocks_to_zero if block not in writers]
        return work._replace(blocks_to_zero=zeroed)

    # What came of a step.

    def update(self, step: Step, result: StepResult) -> list[Output]:
        """Take what came of the oldest step in flight: first the reports on loads, then tokens.

        Raises:
            InvalidValueError: The step is not the oldest in flight, a request has no tokens or too
                many, or a rank is silent about a synchronous load. Nothing has changed.
        """
        book = self._book
        if not book.steps or book.steps[0] is not step:
            oldest = book.steps[0].number if book.steps else "none"
            raise InvalidValueError(f"step {step.number} ends, but the oldest is {oldest}")
        for part in step.scheduled:
            self._check_tokens(step, part, result)
        book.transfers.check(result.reports, [load for load in step.loads if not load.is_async])
        book.steps.popleft()
        judge(book, result.reports, self._dump)
        for part in step.scheduled:
            request = book.requests.get(part.request)
            if request is not None and request.in_flight.pop(step.number, None) is not None:
                self._process(request, part, result.tokens.get(part.request, ()))
        book.departed.processed(step.number)
        if self._options.max_steps_in_flight > 1:
            self._cache.pool.free([block for copy in step.work.copies for block in copy])
        return self._take_outputs()

    def report(self, reports: Sequence[LoadReport]) -> list[Output]:
        """Take reports on loads apart from any step.

        Raises:
            InvalidValueError: A rank or a load is not known; nothing has changed.
        """
        self._book.transfers.check(reports)
        judge(self._book, reports, self._dump)
        return self._take_outputs()

    def _check_tokens(self, step: Step, part: Scheduled, result: StepResult) -> None:
        request = self._book.requests.get(part.request)
        count = len(result.tokens.get(part.request, ()))
        if request is None or step.number not in request.in_flight:
            return
        least, most = (1, 1 + part.num_drafts) if part.samples else (0, 0)
        if not least <= count <= most:
            raise InvalidValueError(
                f"step {step.number} has {count} tokens for request {part.request}; expected "
                f"{least} to {most}"
            )

    def _process(self, request: Request, part: Scheduled, tokens: Sequence[int]) -> None:
        """Take over the tokens of a step; its request may have given its blocks back since."""
        book, number = self._book, request.number
        if number in book.running:
            if part.samples and len(tokens) <= part.num_drafts:
                request.num_computed -= part.num_drafts + 1 - len(tokens)
                self._cache.roll_back(number, request.num_computed)
            processed = request.num_processed
            if request.delays_commit:  # All that the load brought is known to be good by now.
                self._cache.commit(number, min(processed, request.num_tokens))
                request.delays_commit = False
            request.counts.computed(processed)
            book.owners.processed(number, processed)
        new, finish = self._accept(request, tokens)
        if new or finish:
            output = Output(number, new, finish, prompt=request.counts.report())
            if finish:
                book.end(request, output)
            else:
                book.outputs.append(output)

    def _accept(
        self, request: Request, tokens: Sequence[int]
    ) -> tuple[tuple[int, ...], Finish | None]:
        """Append sampled tokens, up to the one that ends the request."""
        new: list[int] = []
        finish = None
        for token in tokens:
            new.append(token)
            if token in request.stop_tokens:
                finish = Finish.STOP
                break
        if new:
            request.outputs += new
            self._cache.extend(request.number, new)
        is_computed = request.num_processed >= len(request.prompt)
        if request.num_tokens >= request.max_tokens and (new or is_computed):
            finish = finish or Finish.LENGTH
        return tuple(new), finish

    def _take_outputs(self) -> list[Output]:
        self._take_events()
        outputs, self._book.outputs = self._book.outputs, []
        return outputs

    def _take_events(self) -> None:
        events = self._cache.take_events()
        if len(events):
            self._publish(events)

    def check_integrity(self) -> None:
        """Panic unless the scheduler, its ledgers and the cache agree."""
        self._book.check_integrity()
