"""vLLM's schedulers with recovery: what happens to requests in their queues after failed loads.

A request that starts over is preempted as vLLM does it, with the output of its steps in flight
dropped. One that goes back in place keeps its blocks; it stays among the running requests only if
the workers follow it there. They do if they run one step at a time and read the number of computed
tokens from each step (vLLM's first model runner). Otherwise the request waits with its blocks, and
its next step sends the workers all of its state, as for a request whose load has ended.
"""

import time
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from kvbraid.integrations.vllm.recovery.recovery import RecoveryFromFailedLoads, SettlingConnector


class RecoveringScheduler(Scheduler):  # type: ignore[misc] # Untyped without vLLM.
    """A scheduler that recovers; `recovery` is None without a connector."""

    recovery: RecoveryFromFailedLoads | None = None

    def start_recovery(self) -> None:
        """Recover from now on, if there is a connector; to be called once, after construction."""
        config = self.vllm_config.kv_transfer_config
        if config is not None:
            source = self.connector if isinstance(self.connector, SettlingConnector) else None
            self.recovery = RecoveryFromFailedLoads(self.kv_cache_manager, config, self, source)
            self.recovery.load_gate.guard(self.connector, self.recovery.useful_end)

    # What vLLM calls.

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Recover from what failed, then use the outputs of a step."""
        loads = model_runner_output.kv_connector_output
        if self.recovery is not None and loads is not None:
            self.recovery.recover(loads)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        if self.recovery is not None:
            self.recovery.step_ended(scheduler_output.num_scheduled_tokens)
        return outputs

    def _handle_failed_recving(self, failed_req_ids: set[str]) -> set[str]:
        """Return nobody: they were recovered before, and need not be passed over."""
        del failed_req_ids
        return set()

    def _handle_invalid_blocks(
        self, invalid_block_ids: set[int], num_scheduled_tokens: dict[str, int]
    ) -> set[str]:
        """Return nobody, as above."""
        del invalid_block_ids, num_scheduled_tokens
        return set()

    def _update_waiting_for_remote_kv(self, request: Request) -> None:
        """Let a request go on whose load has ended."""
        request_id, end = request.request_id, request.num_computed_tokens
        if request_id in self.failed_recving_kv_req_ids:
            self.failed_recving_kv_req_ids.remove(request_id)
            self.finished_recving_kv_req_ids.remove(request_id)
        else:
            super()._update_waiting_for_remote_kv(request)
            if self.recovery is not None:
                self.recovery.arrived(request)
        if end == request.num_tokens:
            self._compute_last_token(request)

    def _compute_last_token(self, request: Request) -> None:
        """Let a request that has its whole prompt compute the last token of it.

        vLLM does so over the same blocks, always. That applies a state twice, and reads what a
        window may not have loaded; such a request looks its prompt up again, without a load.
        """
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
        if self.recovery is not None and not self.recovery.can_compute_last_token(request):
            self.recovery.load_gate.has_all(request)
            self._give_blocks_back(request)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Return whether a waiting request may be scheduled."""
        if self.recovery is not None and self.recovery.is_waiting(request):
            return False
        return bool(super()._handle_blocked_waiting_request(request))

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        if self.recovery is not None:
            self.recovery.leaves(request, ends=False)
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:  # noqa: ANN401
        if self.recovery is not None:
            self.recovery.leaves(request, ends=True)
        return super()._free_request(request, delay_free_blocks)

    # What recovery asks for.

    def can_rewind(self, request: Request, resume: int, *, waits: bool) -> bool:
        """Return whether a request can go back to `resume` tokens and keep its blocks.

        In vLLM's queues, a request without computed tokens has no blocks.
        """
        return resume > 0 or (request.status == RequestStatus.RUNNING and self._can_stay(waits))

    def _can_stay(self, waits: bool) -> bool:
        is_followed = not (self.use_v2_model_runner or self.scheduler_config.async_scheduling)
        return is_followed and not waits

    def rewind(self, request: Request, resume: int, *, waits: bool) -> None:
        """Let a request go on from `resume` tokens, with the blocks that it has."""
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            self.failed_recving_kv_req_ids.add(request.request_id)
        elif request.status == RequestStatus.RUNNING:
            self._drop_steps_in_flight(request)
            if not self._can_stay(waits):
                self._suspend(request)
        request.num_computed_tokens = resume
        if request.status == RequestStatus.RUNNING:
            request.is_prefill_chunk = resume + 1 < request.num_tokens
            if request.is_prefill_chunk:
                self._inflight_prefills.add(request)

    def _suspend(self, request: Request) -> None:
        self.running.remove(request)
        self.encoder_cache_manager.free(request)
        self._inflight_prefills.discard(request)
        request.status = RequestStatus.PREEMPTED
        self.reset_preempted_req_ids.add(request.request_id)
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        self.kv_holding_waiting.prepend_request(request)

    def expect(self, request: Request, resume: int) -> None:
        """Note how many tokens will be left of a load under way of which a part has failed."""
        request.num_computed_tokens = resume
        self.failed_recving_kv_req_ids.add(request.request_id)

    def start_over(self, request: Request) -> None:
        """Give a request's blocks back and let it wait for its first blocks."""
        if request.status == RequestStatus.RUNNING:
            self.running.remove(request)
            self._preempt_request(request, time.monotonic(), drop_stale_output=True)
            self.prev_step_scheduled_req_ids.discard(request.request_id)
            return
        self._give_blocks_back(request)
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            self.failed_recving_kv_req_ids.add(request.request_id)
            return
        self.kv_holding_waiting.remove_requests([request])
        self.deferred_waiting.discard(request)
        self.waiting.prepend_request(request)

    def _give_blocks_back(self, request: Request) -> None:
        assert self.recovery is not None
        self.recovery.leaves(request, ends=False)
        self._free_request_blocks(request)
        self._inflight_prefills.discard(request)
        request.num_computed_tokens = 0

    def fail(self, request: Request) -> None:
        """Let a request end with an error in this step, in which vLLM ends these.

        Its run ends while its steps in flight are known: their loads may turn out to have failed.
        """
        assert self.recovery is not None
        self.recovery.leaves(request, ends=False)
        self._drop_steps_in_flight(request)
        self.encoder_cache_mismatch_reqs.add(request.request_id)

    def fail_told(self, request: Request) -> bool:
        """Let a request end as `fail` does, if it goes on and does not end yet; return whether."""
        goes_on = self.requests.get(request.request_id) is request
        ends = request.request_id in self.encoder_cache_mismatch_reqs
        if goes_on and not ends:
            self.fail(request)
        return goes_on and not ends

    def drop_output(self, request_id: str) -> None:
        """Use no output of a request's steps in flight; its run has ended already."""
        request = self.requests.get(request_id)
        if request is not None and request.num_stale_output_tokens:
            request.drop_stale_output = True

    def _drop_steps_in_flight(self, request: Request) -> None:
        request.spec_token_ids = []
        request.num_output_placeholders = 0
        request.drop_stale_output = True
        request.num_stale_output_tokens = request.num_in_flight_tokens
