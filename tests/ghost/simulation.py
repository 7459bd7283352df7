"""One simulation: an engine, its tiers and its requests, from a seed to the last freed block.

`Simulation(seed).run()` returns what was injected, or raises `BadOutcomeError`. Everything is
drawn from the seed, so the seed alone replays it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from kvbraid.cache import CacheManager
from kvbraid.recovery import Policy
from kvbraid.scheduler import Finish, Load, Output
from kvbraid.scheduler.scheduler import Scheduler

from tests.ghost.checks import BadOutcomeError, Findable
from tests.ghost.device import Device, fault_of
from tests.ghost.engine import Engine, Flight
from tests.ghost.faults import DISTURBING, Event, Fault, Tally
from tests.ghost.injection import Injection
from tests.ghost.offload import Offload
from tests.ghost.progress import Progress
from tests.ghost.setting import Setting, draw_real_setting, draw_setting
from tests.ghost.tiers import GhostTiers
from tests.ghost.transfers import Transfers
from tests.ghost.truth import GARBAGE_TOKEN, Truth

MAX_TICKS: Final = 1_500


class Simulation:
    """One simulation. `trace` is called with what happens, for people who replay it. With a
    folder, the ranks of the engine's own tiers are real, and keep their records there."""

    def __init__(
        self,
        seed: int,
        trace: Callable[[str], object] | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        self._trace = trace
        drawn = draw_real_setting(seed) if folder else draw_setting(seed)
        assert drawn, f"seed {seed} has no tiers for a folder"
        self.setting: Final[Setting] = drawn
        self.random = Random(seed + (1 << 40))
        setting = self.setting
        topology = setting.cache.topology
        self.cache = CacheManager(setting.cache)
        self.truth = Truth()
        self.device = Device(topology.groups, setting.cache.num_blocks)
        num_ranks = setting.options.num_ranks
        self.offload = Offload(setting, self.cache, self.device, self.random, folder)
        self.tiers = GhostTiers(
            self.truth, topology, self.random, setting.habits, self.offload.loads
        )
        self.transfers = Transfers(self.device, self.random, num_ranks)
        self.engine = Engine(self.device, self.transfers)
        self.injection = Injection(setting, self.random, self.transfers, self.tiers)
        self.findable = Findable(self.cache, self.device, self.injection.faults)
        self.scheduler = Scheduler(
            self.cache, setting.options, self.tiers, publish=self.findable.replay
        )
        self.progress = Progress(self.scheduler)
        self.waiting = list(zip(setting.prompts, setting.num_outputs, setting.salts, strict=True))
        self.got: dict[int, list[int]] = {}
        self.ended: dict[int, Output] = {}
        self.suspects: dict[int, set[int]] = {}
        self.joined: set[int] = set()
        self.injection.has_slot = self._has_slot
        self.transfers.goes_on = self._goes_on
        self.transfers.may_be_late = bool(setting.options.late_steps)
        self.transfers.is_as_it_was = self._is_as_it_was
        self.tick = 0
        self.tally = Tally(cases=1, requests=len(self.waiting))

    def close(self) -> None:
        """End what threads there are."""
        self.offload.ranks.close()

    def run(self) -> Tally:
        while self._is_busy:
            self._tick()
            if self.tick > MAX_TICKS:
                raise BadOutcomeError(
                    f"livelock: {self.running} still run after {self.tick} ticks"
                )
        self._check_idle()
        counted = (fault.counts_as for fault in self.injection.faults)
        self.tally.faults.update(cell for cell in counted if cell)
        self.offload.count(self.tally)
        return self.tally

    @property
    def _is_busy(self) -> bool:
        is_moving = self.transfers.is_busy or self.offload.is_busy
        return bool(self.waiting or self.running or self.engine.flights or is_moving)

    def _tell(self, what: str, *details: object) -> None:
        if self._trace:
            self._trace(f"{self.tick:4} {what.format(*details)}")

    @property
    def running(self) -> list[int]:
        """The requests that have arrived and not ended."""
        return [request for request in self.got if request not in self.ended]

    def _tick(self) -> None:
        self.tick += 1
        self.tiers.tick = self.transfers.tick = self.tick
        self.offload.tick(self.tick)
        if self.setting.own and self.random.random() < self.setting.own.eviction_share:
            self._evict()
            if self.random.random() < 0.3:
                self.offload.lose_host()
        self._arrive()
        self._abort_somebody()
        self._schedule()
        self.transfers.advance()
        self.offload.advance()
        self._finish_step()
        self._check()

    def _arrive(self) -> None:
        is_open = not self.injection.awaits_shared
        share = 0.15 if self.setting.own else 0.6  # What others compute is to be stored before.
        while self.waiting and is_open and (not self.got or self.random.random() < share):
            self._add(*self.waiting.pop())
        self._join()

    def _join(self) -> None:
        """Let somebody with the same prompt arrive for a block that others are to share, once it
        can be found."""
        is_early = self.setting.options.findable == "scheduled"
        for fault in self.injection.faults:
            is_found = (is_early and not fault.load.is_async) or (
                fault.load.number in self.transfers.over
            )
            if fault.event is Event.SHARED and is_found and fault.number not in self.joined:
                self.joined.add(fault.number)
                life = self.engine.lives[fault.load.request]
                prompt = life.tokens[: life.num_prompt_tokens]
                self._add(prompt, self.random.randint(1, 4), life.extra.cache_salt)

    def _add(self, prompt: Sequence[int], num_outputs: int, salt: str | None) -> None:
        life = self.truth.life(prompt, num_outputs, salt)
        request = self.scheduler.add(prompt, max_new_tokens=num_outputs, extra=life.extra)
        self.engine.lives[request] = life
        self.progress.arrive(request, life)
        self.engine.expected[request] = self.device.expected(life)
        self.findable.know(life, self.engine.expected[request])
        self.got[request] = []
        self._tell(
            "request {}: {} tokens, {} to come, {}", request, len(prompt), num_outputs, salt
        )

    def _has_slot(self) -> bool:
        """Whether a request that arrives now starts in the next step."""
        inside = self.scheduler.inspect()
        return not inside.waiting and len(inside.running) < inside.options.max_running

    def _goes_on(self, load: Load) -> bool:
        request = self.scheduler.inspect().running.get(load.request)
        return request is not None and request.load is load and request.num_loaded > 0

    def _is_as_it_was(self, load: Load) -> bool:
        """Whether a load's blocks still mean what they meant when it began: later they may mean
        what another request has, too."""
        ledgers = self.scheduler.ledgers
        ledgers.catch_up(self.scheduler.inspect().running)
        before = ledgers.released.meant().blocks
        return before.isdisjoint(target.block_id for target in load.targets)

    def _abort_somebody(self) -> None:
        if self.random.random() < 0.01 and self.running and not self._is_promised:
            self._abort(self.random.choice(self.running))

    @property
    def _is_promised(self) -> bool:
        """Whether nothing may end a run before a late report."""
        return self.injection.awaits_late and not self.setting.options.late_steps

    def _evict(self) -> None:
        """Reuse all free blocks: only tiers have what was in them."""
        free = self.cache.pool.take(self.cache.pool.num_free)
        self.cache.pool.free(free)
        self.findable.replay(self.cache.take_events())

    def _abort(self, request: int) -> None:
        if request not in self.ended:
            self._note([self.scheduler.abort(request)])

    def _schedule(self) -> None:
        while len(self.engine.flights) < self.setting.options.max_steps_in_flight:
            step = self.scheduler.schedule()
            self.offload.scheduled(step, self.scheduler.inspect().num_steps)
            if step is None:
                return
            self.tally.steps += 1
            flight = self.engine.take(step, self.cache.blocks)
            for transfer in flight.transfers:
                self.injection.plan(transfer)
                self._tell("{}\n    fails as {}", transfer.load, transfer.fault)
            for part, work in flight.parts:
                self._tell("step {}: {}\n    in {}", step.number, part, work.tables)
            self.progress.take(step)
            self._join()
            if self.random.random() < 0.5:
                self._execute(flight)
            if self.random.random() < 0.2:
                return

    def _execute(self, last: Flight) -> None:
        for flight in self.engine.flights:
            if not flight.is_executed:
                self.engine.execute(flight)
                self.offload.executed(flight.step.number)
            if flight is last:
                return

    # What happens between a failure and its report.

    def _disturb(self) -> None:
        """Let what belongs to events happen before their reports are delivered."""
        for fault in self.injection.faults:
            if fault.event is Event.SHARED and not fault.is_reported and self._is_shared(fault):
                fault.has_happened = True
                if self.random.random() < 0.5:
                    self.transfers.hurry(fault)
        for fault in self.transfers.faults_due():
            if fault.event in DISTURBING and not fault.is_reported:
                self._disturb_once(fault)

    def _is_shared(self, fault: Fault) -> bool:
        blocks = sorted({fault.load.targets[index].block_id for index in fault.spoilt})
        places = self.cache.tables.requests_of(blocks)
        return any(len({place.request for place in places.of(block)}) > 1 for block in blocks)

    def _disturb_once(self, fault: Fault) -> None:
        request = fault.load.request
        if request in self.ended or fault.has_happened:
            return
        fault.has_happened = True
        self._tell("{} for request {}", fault.event, request)
        match fault.event:
            case Event.ABORT:
                self._abort(request)
            case Event.PREEMPT:
                self._preempt(request)
            case Event.EVICT:
                self._evict()
            case _:
                for running in self.running:
                    self._preempt(running)
                self.cache.reset()

    def _preempt(self, request: int) -> None:
        inside = self.scheduler.inspect()
        if request in inside.running:
            inside.preempt(inside.requests[request])

    def _finish_step(self) -> None:
        flight = self.engine.flights[0] if self.engine.flights else None
        if flight:
            self._execute(flight)
            self._hurry(flight)
        self._disturb()
        untold = [fault for fault in self.injection.faults if not fault.is_reported]
        own = self.offload.take_reports()
        reports = [*self.transfers.collect(), *own]
        for report in reports:
            self._tell("{}", report)
        self.progress.before_reports()
        if flight:
            self._tell("step {} ends, tainted: {}", flight.step.number, flight.taints)
            self.engine.flights.popleft()
            result = self.engine.result(flight, reports)
            self._note(self.scheduler.update(flight.step, result))
        elif reports:
            self._note(self.scheduler.report(reports))
        told = [fault for fault in untold if fault.is_reported]
        self._judge_reports(told)
        failed = self.offload.failed(own)
        self.progress.after_reports([*(fault.load for fault in told), *failed])

    def _hurry(self, flight: Flight) -> None:
        """A report is never so late that it comes too late. If none is promised after the end of a
        load, whoever has read garbage has not ended before, and no window has passed it."""
        if self.setting.options.late_steps:
            return
        for part, work in flight.parts:
            taint = flight.taints.get(part.request)
            number = fault_of(taint.value) if taint else None
            if number is None:
                continue
            stays = all(group.kind.is_full for group in self.device.groups)
            if work.end >= len(work.life.tokens) - 1 or not stays:
                self.transfers.hurry(self.injection.faults[number])

    # What came out.

    def _note(self, outputs: list[Output]) -> None:
        for output in outputs:
            request = output.request
            self._tell("{}", output)
            if request in self.ended:
                raise BadOutcomeError(f"request {request} has an output after its end")
            for token in output.tokens:
                self._note_token(request, token)
            if output.prompt is not None:
                self._check_counts(output)
            if output.finish is not None:
                self.ended[request] = output
                self._check_end(output)

    def _note_token(self, request: int, token: int) -> None:
        got, life = self.got[request], self.engine.lives[request]
        if token >= GARBAGE_TOKEN:
            taint = self.engine.garbage_tokens[token - GARBAGE_TOKEN]
            number = fault_of(taint.value)
            if number is None or self.injection.faults[number].is_reported:
                raise BadOutcomeError(f"request {request}: {taint.where}, and it was emitted")
            self.suspects.setdefault(number, set()).add(request)
        elif not self._is_suspect(request) and life.outputs[len(got)] != token:
            raise BadOutcomeError(
                f"request {request} got {token} as output {len(got)} instead of "
                f"{life.outputs[len(got)]}: a token was lost, or came twice"
            )
        got.append(token)

    def _is_suspect(self, request: int) -> bool:
        return any(request in requests for requests in self.suspects.values())

    def _check_counts(self, output: Output) -> None:
        assert output.prompt is not None
        life, prompt = self.engine.lives[output.request], output.prompt
        if output.tokens and len(self.got[output.request]) != len(output.tokens):
            raise BadOutcomeError(f"request {output.request} reports its counts again: {prompt}")
        if sum(prompt) != life.num_prompt_tokens or min(prompt) < 0:
            raise BadOutcomeError(
                f"request {output.request} counts {prompt} of {life.num_prompt_tokens} tokens"
            )

    def _check_end(self, output: Output) -> None:
        request, got = output.request, self.got[output.request]
        life = self.engine.lives[request]
        if output.finish is Finish.LENGTH:
            if got != life.outputs and not self._is_suspect(request):
                raise BadOutcomeError(f"request {request} got {got} instead of {life.outputs}")
        elif output.finish is Finish.ERROR:
            self._check_error(output)
        elif output.finish is not Finish.ABORTED:
            raise BadOutcomeError(f"request {request} ended with {output.finish}")

    def _check_error(self, output: Output) -> None:
        may_fail = self.setting.options.policy is Policy.FAIL
        if output.error == "tainted_output":
            was_told = self._is_suspect(output.request)
            was_told = was_told or output.request in self.device.may_have_told
            is_right = was_told or self._means_several_loads()
        else:
            is_right = output.error == "load_failed" and may_fail
        if not is_right:
            raise BadOutcomeError(f"request {output.request} ended with {output.error}")

    def _means_several_loads(self) -> bool:
        """Whether a report that names no load, late or told twice, has named a request that had
        loaded before, or has since: then both loads count as failed."""
        told = [fault for fault in self.injection.faults if fault.is_reported]
        late = {f.load.request for f in told if f.is_late or f.event is Event.TWICE}
        return any(self.transfers.num_loads[request] > 1 for request in late)

    def _judge_reports(self, told: list[Fault]) -> None:
        """A failure that was reported now: who was handed out garbage has ended."""
        for fault in told:
            for request in self.suspects.get(fault.number, ()):
                if request not in self.ended:
                    raise BadOutcomeError(f"request {request} goes on with garbage handed out")

    # At the end of each step.

    def _check(self) -> None:
        self.scheduler.check_integrity(self.offload.held_blocks)
        self.findable.check(self.engine.unwritten())
        self.offload.check(self.findable)

    def _check_idle(self) -> None:
        pool = self.cache.pool
        if self.scheduler.schedule() is not None:
            raise BadOutcomeError("an idle scheduler has a step")
        self.offload.check_idle()
        self.cache.start_step()
        if pool.num_held or pool.num_free != pool.num_blocks - 1:
            raise BadOutcomeError(f"{pool.num_held} blocks are held, {pool.num_free} are free")
