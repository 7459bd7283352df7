"""Recovery from failed loads: reads reports, decides, and applies a decision to our cache.

What happens to a request in vLLM's queues is done by the caller, through `Rescheduling`. The order
is: the cache forgets and goes back, then requests are rescheduled, then ownership is settled. A
request that has to wait until another one has computed a shared block is never scheduled before
that; if that other one leaves, those who wait start over in the same call.
"""

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from vllm.config import KVTransferConfig
from vllm.logger import init_logger
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.recovery.counts import RecoveryCounts
from kvbraid.integrations.vllm.recovery.load_gate import LoadGate
from kvbraid.integrations.vllm.recovery.options import recovery_options
from kvbraid.integrations.vllm.recovery.reports import Reports
from kvbraid.integrations.vllm.recovery.request_runs import RequestRun, RequestRuns
from kvbraid.integrations.vllm.recovery.tracked import TrackedCacheManager
from kvbraid.loads import NO_TIERS, Failures, GroupBlock, Target, Tiers
from kvbraid.recovery import Action, Policy, RecoveryPlan, decide
from kvbraid.recovery.decision.copies import with_copies
from kvbraid.recovery.ledger.counts import PromptCounts
from kvbraid.recovery.ledger.loading import can_compute, useful_end
from kvbraid.recovery.ledger.owners import HandedOn, Ownership
from kvbraid.spec import SpecKind

logger = init_logger("vllm.kvbraid.recovery")


class Rescheduling(Protocol):
    """What a scheduler does with its requests. No output of their steps in flight is used."""

    def can_rewind(self, request: Request, resume: int, *, waits: bool) -> bool:
        """Return whether a request can go back to `resume` tokens and keep its blocks."""
        ...

    def rewind(self, request: Request, resume: int, *, waits: bool) -> None:
        """Let a request go on from `resume` tokens, with the blocks that it has."""
        ...

    def expect(self, request: Request, resume: int) -> None:
        """Note how many tokens will be left of a load under way of which a part has failed."""
        ...

    def start_over(self, request: Request) -> None:
        """Give a request's blocks back and let it wait for its first blocks."""
        ...

    def fail(self, request: Request) -> None:
        """Let a request end with an error in this step."""
        ...

    def fail_told(self, request: Request) -> bool:
        """Let a request end as `fail` does, if it goes on and does not end yet; return whether."""
        ...

    def drop_output(self, request_id: str) -> None:
        """Use no output of a request's steps in flight; its run has ended already."""
        ...


@runtime_checkable
class SettlingConnector(Tiers, Protocol):
    """A connector that knows on the scheduler's side what its loads consist of."""

    def settle(self, output: KVConnectorOutput) -> None:
        """Add to what workers say which loads have ended, and what of them has failed."""
        ...


class RecoveryFromFailedLoads:
    """The part of a scheduler with a connector that recovers.

    Attributes:
        policy: What happens to affected requests.
        counts: What was recovered.
    """

    def __init__(
        self,
        manager: TrackedCacheManager,
        config: KVTransferConfig,
        scheduler: Rescheduling,
        source: SettlingConnector | None = None,
    ) -> None:
        self._source = source
        self._tiers: Tiers = source or NO_TIERS
        self.policy, options = recovery_options(config)
        self.counts = RecoveryCounts(self.policy.value)
        self.load_gate = LoadGate(str(config.kv_connector), self.policy, options, _milliseconds)
        self._state_interval = options.state_interval_tokens
        self._manager = manager
        self._cache = manager.cache
        self._runs = manager.runs = RequestRuns(manager.cache, options.late_report_steps)
        self._scheduler = scheduler
        self._reports = Reports(self._runs)
        self._ownership = Ownership([g.block_size for g in self._cache.config.topology.groups])
        self._held: dict[str, list[Target]] = {}
        self._prompts: dict[str, PromptCounts] = {}
        manager.on_start = self._started
        _log_policy(self.policy, options.policy)

    # Requests come and go.

    def _started(self, run: RequestRun) -> None:
        request = run.request
        counts = self._prompts.get(request.request_id)
        if counts is None:
            counts = PromptCounts(max(request.num_prompt_tokens, 1))
            self._prompts[request.request_id] = counts
        counts.started(run.num_local, run.num_loaded)
        _correct(request, counts)

    def arrived(self, request: Request) -> None:
        """Note that a load has ended well, and that its blocks are findable."""
        run = self._runs.find(request.request_id)
        if run is not None:
            run.delays_commit = False

    def useful_end(self, num_tokens: int) -> int:
        """Return where a load of a whole prompt ends.

        A window's load may have to end before the last token, so that it has what that one reads.
        It never has a block less for it: connectors may pair blocks from the end. With states, it
        ends at the last boundary at which the connector is known to have them.
        """
        topology = self._cache.config.topology
        sizes = [spec.block_size for spec in topology.groups]
        if all(spec.kind is not SpecKind.MAMBA for spec in topology.groups):
            fills_less = any((num_tokens - 1) % size == 0 for size in sizes)
            return num_tokens if fills_less else useful_end(topology.groups, num_tokens, 1)
        if self._state_interval is None:
            return num_tokens
        unit = math.lcm(self._state_interval, *sizes, topology.alignment or 1)
        return (num_tokens - 1) // unit * unit

    def can_compute_last_token(self, request: Request) -> bool:
        """Return whether a request can compute its last token over the blocks that it has."""
        run = self._runs.find(request.request_id)
        assert run is not None
        tables = self._cache.blocks(run.number)
        return can_compute(self._cache.config.topology.groups, tables, request.num_tokens - 1)

    def leaves(self, request: Request, *, ends: bool) -> None:
        """Note that a request is about to give its blocks back: it `ends`, or it is preempted."""
        request_id = request.request_id
        run = self._runs.find(request_id)
        self._reports.forget(request_id)
        if run is not None:
            if run.is_unused:
                self.counts.waste(run.num_loaded)
            self._prompts[request_id].computed(max(run.num_processed, 0))
            self._runs.end(request_id)
            self._start_heirs_over(self._ownership.leaves(run.number))
        if ends:
            self._prompts.pop(request_id, None)
            self.load_gate.forget(request_id)

    def is_waiting(self, request: Request) -> bool:
        """Return whether a request must not be scheduled: another one writes a block of it."""
        run = self._runs.find(request.request_id)
        return run is not None and self._ownership.is_waiting(run.number)

    # A step has ended.

    def recover(self, output: KVConnectorOutput) -> None:
        """Do what has to be done before the outputs of a step are used."""
        if self._source is not None:
            self._source.settle(output)
        failures = self._reports.read(output, keeps_back=self.policy is not Policy.FAIL)
        for request_id in output.finished_recving or ():
            held = self._held.pop(request_id, [])
            self._cache.pool.free([each.block_id for each in held])
            self.counts.release(each.group for each in held)
        if failures:
            self._recover(failures)
            self.load_gate.load_failed()
        for request_id, failed in self._reports.kept_back().items():
            self._expect(request_id, failed)
        self.counts.ignore(self._reports.take_ignored())

    def step_ended(self, num_scheduled_tokens: Mapping[str, int]) -> None:
        """Note that the outputs of a step were used."""
        self._runs.process(num_scheduled_tokens)
        for run in filter(None, map(self._runs.find, num_scheduled_tokens)):
            if run.is_unproved:
                run.is_unproved = False
                self.load_gate.load_succeeded()
        if self._ownership.blocks:
            for run in self._runs.live():
                self._ownership.processed(run.number, run.num_processed)

    def _recover(self, failures: Failures) -> None:
        by_number = {run.number: run for run in self._runs.live()}
        loading = {
            each.block_id: (run.request.request_id, each)
            for run in by_number.values()
            if run.is_loading
            for each in self._runs.loaded(run.number, run)
        }
        runs, past = self._runs.past()
        busy = {*loading, *self._ownership.blocks}
        decided = with_copies(
            lambda failed: decide(
                self._cache, runs, failed, busy=busy, policy=self.policy, former=past.former
            ),
            failures,
            lambda plan: plan.garbage(past.former, self._cache.config.num_blocks),
            self._tiers.forget_blocks,
        )
        told = {
            self._runs.request_of(n).request_id: self._runs.request_of(n) for n in decided.told
        }
        plan = self._feasible(
            self._ending(decided, by_number, told),
            by_number,
            {b for b in decided.recovery.hold if b in loading},
        )
        by_group = self._by_group(plan.tainted)
        self._cache.recover(replace(plan.recovery, preempt=()))
        self._tell(plan)
        for block in plan.recovery.hold:
            request_id, held = loading[block]
            self._held.setdefault(request_id, []).append(held)
            self.counts.hold(held.group)
        handed_on = self._ownership.take(plan, self._cache.tables)
        for request in self._runs.judged(plan):
            self._scheduler.drop_output(request.request_id)
        self._reschedule(plan, by_number)
        for request in told.values():
            if self._scheduler.fail_told(request):
                _log_end(request, Action.TAINTED_OUTPUT)
        self._start_heirs_over(handed_on)
        self.counts.add(plan, by_group)
        self.counts.cool(self.load_gate.num_cooling)
        _log(plan, self.policy)

    def _tell(self, plan: RecoveryPlan) -> None:
        """Tell a connector's tiers which records are no good, and which to leave alone."""
        for record in plan.drop:
            self._tiers.drop(record)
        for record in plan.back_off:
            self._tiers.back_off(record)

    def _ending(
        self, plan: RecoveryPlan, by_number: Mapping[int, RequestRun], told: Collection[str]
    ) -> RecoveryPlan:
        """Let those end that were told garbage by an earlier run, whatever becomes of this one."""
        requests = {
            number: each._replace(action=Action.TAINTED_OUTPUT, owner_of=(), waits_for={})
            if by_number[number].request.request_id in told
            else each
            for number, each in plan.requests.items()
        }
        return replace(plan, requests=requests)

    def _feasible(
        self, plan: RecoveryPlan, by_number: Mapping[int, RequestRun], hold: Iterable[BlockId]
    ) -> RecoveryPlan:
        """Let those start over that vLLM cannot take back in place, and who waits for them."""
        requests = dict(plan.requests)
        for number, each in plan.requests.items():
            request = by_number[number].request
            asks_again = not each.action.ends and self.load_gate.asks_again(request.request_id)
            waits = bool(each.waits_for)
            owners = [requests.get(owner) for owner in each.waits_for.values()]
            if each.action is Action.REWIND and (
                asks_again
                or not self._scheduler.can_rewind(request, each.resume, waits=waits)
                or any(owner is None or owner.action is not Action.REWIND for owner in owners)
            ):
                requests[number] = each._replace(
                    action=Action.START_OVER, owner_of=(), waits_for={}
                )
        staying = {n for n, each in requests.items() if each.action is Action.REWIND}
        recovery = replace(
            plan.recovery,
            rewind={n: resume for n, resume in plan.recovery.rewind.items() if n in staying},
            zero={n: resume for n, resume in plan.recovery.zero.items() if n in staying},
            hold=sorted(hold),
        )
        return replace(plan, requests=requests, recovery=recovery)

    def _reschedule(self, plan: RecoveryPlan, by_number: Mapping[int, RequestRun]) -> None:
        """Tell the scheduler; who starts over does so last one first, to keep the order."""
        for number, each in sorted(plan.requests.items(), reverse=True):
            run = by_number[number]
            request = run.request
            self._prompts[request.request_id].recovered(each.resume, max(each.recompute, 0))
            _correct(request, self._prompts[request.request_id])
            run.is_unproved = False
            if each.action is Action.REWIND:
                self._scheduler.rewind(request, each.resume, waits=bool(each.waits_for))
                self._runs.rewind(number, run, request.num_tokens, each.resume)
            elif each.action is Action.START_OVER:
                self._scheduler.start_over(request)
            else:
                _log_end(request, each.action)
                self._scheduler.fail(request)

    def _start_heirs_over(self, handed_on: HandedOn) -> None:
        """Let requests start over that waited for one that left, and inherited what is garbage."""
        by_number = {run.number: run.request for run in self._runs.live()}
        for heir in sorted(set(handed_on.owners.values()), reverse=True):
            if self._ownership.owner_of(heir):  # Otherwise it has started over because of another.
                self._scheduler.start_over(by_number[heir])

    def _expect(self, request_id: str, failed: Iterable[GroupBlock]) -> None:
        run = self._runs.find(request_id)
        if run is not None:
            (point,) = self._cache.tables.resume_points(
                [run.number],
                sorted(pair.block_id for pair in failed),
                limits=[run.num_computed],
                drops_unit=False,
            )
            self._scheduler.expect(run.request, point.num_tokens)

    def _by_group(self, block_ids: Iterable[BlockId]) -> Counter[int]:
        places = self._cache.tables.requests_of(sorted(block_ids))
        groups: Counter[int] = Counter()
        for block_id in places.block_ids:
            own = places.of(BlockId(block_id))
            groups.update({own[0].group} if own else ())
        return groups

    @property
    def held_blocks(self) -> list[BlockId]:
        """The blocks that are quarantined: loads of requests that gave them up may write them.

        `Quarantine` waits for one rank after another; vLLM unites its ranks, and tells the end of
        a load once, by its request's id, whether or not anything is held for it.
        """
        return [each.block_id for held in self._held.values() for each in held]


def _milliseconds() -> float:
    return time.monotonic() * 1_000


def _correct(request: Request, counts: PromptCounts) -> None:
    """Correct what the first output will tell of a prompt; without recovery, vLLM does."""
    if counts.recomputed and request.prefill_stats is not None:
        now = counts.now()
        request.prefill_stats.set(request.num_prompt_tokens, now.cached, now.external)


def _log_policy(policy: Policy, asked: Policy | None) -> None:
    logger.info("kvbraid: after failed KV loads, the policy is %s.", policy.value)
    if policy is Policy.FAIL and asked is None:
        logger.warning(
            "kvbraid: requests whose KV loads fail will end with an error, because "
            'kv_load_failure_policy is "fail" (the default); set it to "recompute" to recover.'
        )


def _log(plan: RecoveryPlan, policy: Policy) -> None:
    actions = Counter(each.action for each in plan.requests.values())
    if plan.tainted:
        logger.warning(
            "kvbraid: KV loads failed (policy %s): %d blocks forgotten, %d requests go back in "
            "place, %d start over, %d end with an error; %d tokens are computed again.",
            policy.value,
            len(plan.tainted),
            actions[Action.REWIND],
            actions[Action.START_OVER],
            sum(number for action, number in actions.items() if action.ends),
            plan.num_recomputed_tokens,
        )


def _log_end(request: Request, action: Action) -> None:
    logger.error(
        "kvbraid: request %s ends with an error after a failed KV load (%s).",
        request.request_id,
        action.value,
    )
