"""One of our schedulers, a worker that knows what its blocks hold, and the steps between them."""

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Final

from kvbraid.integrations.vllm import KvbraidAsyncScheduler, KvbraidScheduler

from tests.vllm.drop_in_pair import chunked, full, states, window
from tests.vllm.engines import Layout, config, scheduler
from tests.vllm.recovery import ghost_connector
from tests.vllm.recovery.ghost_connector import GhostConnector
from tests.vllm.recovery.ghost_worker import GARBAGE, Worker, truth

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from vllm.config import KVTransferConfig
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request, RequestStatus

LAYOUTS: Final = {
    "full": Layout((full(),), 120, 16, 16),
    "window": Layout((window(40),), 120, 16, 16),
    "window and full": Layout((window(40), full()), 200, 16, 16),
    "chunks and full": Layout((chunked(48), full()), 200, 16, 16),
    "states and full": Layout((states(), full()), 200, 16, 16),
    "states inside blocks": Layout((states(64), full(64)), 100, 64, 16),
    "unequal blocks": Layout((window(60, 32), full()), 160, 32, 16),
    "four groups": Layout((window(40), chunked(64), window(20), full()), 400, 16, 16),
}


class GhostEngine:
    """`outputs` are the tokens of each request so far, `errors` those that ended with one."""

    CONNECTOR = "GhostConnector"
    MODULE = ghost_connector.__name__
    EXTRA: ClassVar[dict[str, object]] = {}

    def __init__(
        self,
        layout: Layout,
        *,
        is_async: bool,
        policy: str = "recompute",
        options: dict[str, object] | None = None,
        kind: type | None = None,
        threshold: int = 0,
    ) -> None:
        made = config(layout, is_async=is_async)
        made.scheduler_config.long_prefill_token_threshold = threshold
        made.kv_transfer_config = KVTransferConfig(
            kv_connector=self.CONNECTOR,
            kv_connector_module_path=self.MODULE,
            kv_role="kv_both",
            kv_load_failure_policy=policy,
            kv_connector_extra_config=self.EXTRA
            | {"kvbraid_recovery": {"tier_cooldown_s": 0} | (options or {})},
        )
        kv_cache_utils.init_none_hash(sha256)
        self._hasher = kv_cache_utils.get_request_block_hasher(layout.unit, sha256)
        ours = KvbraidAsyncScheduler if is_async else KvbraidScheduler
        made.scheduler_config.scheduler_cls = kind or ours
        self.scheduler: Any = scheduler(kind or ours, layout, made)
        self.published: list[Any] = []
        self.scheduler.kv_event_publisher = SimpleNamespace(publish=self.published.append)
        self.connector: GhostConnector = self.scheduler.connector
        self.is_ours = kind is None
        self.worker = Worker(self._groups(layout), is_async)
        self._depth = 2 if is_async else 1
        self._steps: deque[tuple[Any, Any]] = deque()
        self.outputs: dict[str, list[int]] = {}
        self.errors: set[str] = set()
        self.stats: dict[str, Any] = {}
        self.most: dict[str, int] = {}
        self._prompts: dict[str, list[int]] = {}

    def _groups(self, layout: Layout) -> Sequence[Any]:
        if self.is_ours:
            groups: Sequence[Any] = self.scheduler.kv_cache_manager.cache.config.topology.groups
            return groups
        return GhostEngine(
            layout, is_async=self.scheduler.scheduler_config.async_scheduling
        )._groups(layout)

    @property
    def recovery(self) -> Any:  # noqa: ANN401 - untyped, as the scheduler.
        return self.scheduler.recovery

    def add(self, prompt: list[int], max_tokens: int = 4) -> Any:  # noqa: ANN401 - vLLM's own type.
        name = str(len(self._prompts) + 1)
        self._prompts[name] = prompt
        self.most[name] = max_tokens
        self.outputs[name] = []
        request = self.new_request(name, prompt, max_tokens, arrival_time=float(name))
        self.scheduler.add_request(request)
        return request

    def new_request(
        self, name: str, prompt: list[int], max_tokens: int = 1, arrival_time: float = 0.0
    ) -> Any:  # noqa: ANN401 - vLLM's own type.
        """Return a request that the scheduler does not know yet."""
        return Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            pooling_params=None,
            arrival_time=arrival_time,
            block_hasher=self._hasher,
        )

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def preempt(self, name: str) -> None:
        """Preempt a running request, as vLLM does between two steps when it forgets its cache."""
        made = self.scheduler
        request = made.requests[name]
        made.running.remove(request)
        made._preempt_request(request, 0.0, drop_stale_output=True)
        made.prev_step_scheduled_req_ids.discard(name)

    def step(self) -> Any:  # noqa: ANN401 - vLLM's own type.
        """Schedule and run a step; once enough are under way, use the first one's outputs."""
        output = self.scheduler.schedule()
        loads, self.connector.loads = self.connector.loads, []
        self._steps.append((output, self.worker.execute(output, loads)))
        if len(self._steps) >= self._depth:
            self.process()
        return output

    def process(self) -> None:
        """Use the outputs of the oldest step under way."""
        output, result = self._steps.popleft()
        for client in self.scheduler.update_from_output(output, result).values():
            for said in client.outputs:
                self._take(said)
        if self.is_ours:
            self.check_integrity()

    def _take(self, said: Any) -> None:  # noqa: ANN401 - vLLM's own type.
        name = said.request_id
        self.outputs[name] += said.new_token_ids
        if said.prefill_stats is not None:
            assert name not in self.stats, "told twice"
            self.stats[name] = said.prefill_stats
        if said.finish_reason is not None and str(said.finish_reason) == "error":
            self.errors.add(name)

    def check_integrity(self) -> None:
        made = self.scheduler
        held = [block.block_id for _, blocks in made.deferred_frees for block in blocks]
        made.kv_cache_manager.cache.debug.check_integrity(held + self.recovery.held_blocks)
        self.check_outputs()

    def check_outputs(self) -> None:
        for name, tokens in self.outputs.items():
            assert GARBAGE not in tokens, f"{name} was told what was computed from garbage"
            assert tokens == truth(self._prompts[name], len(tokens)), name

    def finish(self, most: int = 400) -> None:
        """Go on until nothing is left or loads; more steps than this are a livelock."""
        for _ in range(most):
            if not (self.scheduler.has_unfinished_requests() or self.worker.loading):
                while self._steps:
                    self.process()
                return
            self.step()
        raise AssertionError(f"{len(self.scheduler.requests)} requests do not end")

    def hit(self, prompt: list[int]) -> int:
        """Return how much a new request with a prompt would find in the cache."""
        request = self.add(prompt, 1)
        found = self.scheduler.kv_cache_manager.get_computed_blocks(request)[1]
        self.abort(request.request_id)
        del self.outputs[request.request_id]
        return int(found)
