"""vLLM's schedulers on its own cache and on ours, without a model: the tokens are random.

Asynchronous schedulers get a step's tokens only when the next step is already scheduled. Where
vLLM's own cache would copy a block before it is written, it is made to wait, as ours does.
"""

from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from tests.tiny_models import FOLDER
from tests.vllm.drop_in_pair import config_of, full, states, tokens, window
from tests.vllm.lockstep.unwritten import UnwrittenBlocks

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm import KvbraidAsyncScheduler, KvbraidScheduler
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

NUM_STEPS: Final = 400
KINDS: Final = {
    False: (Scheduler, KvbraidScheduler),
    True: (AsyncScheduler, KvbraidAsyncScheduler),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Groups and pool; `unit` is the hash block."""

    groups: tuple[Any, ...]
    num_blocks: int
    alignment: int
    unit: int

    def cache(self) -> Any:  # noqa: ANN401 - vLLM's own type.
        return config_of(*self.groups, num_blocks=self.num_blocks)


LAYOUTS: Final = {
    "window and full": Layout((window(40), full()), 60, 16, 16),
    "unequal blocks": Layout((window(60, 32), full()), 44, 32, 16),
    "states": Layout((states(), full()), 48, 16, 16),
    "states inside blocks": Layout((states(64), full(64)), 30, 64, 16),
}


@cache
def engine_config() -> Any:  # noqa: ANN401 - vLLM's own type.
    """Return what an engine with a tiny model would be configured with. Takes seconds."""
    return EngineArgs(
        model=str(FOLDER / "gemma3"),
        max_model_len=512,
        max_num_batched_tokens=128,
        max_num_seqs=4,
        enable_prefix_caching=True,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    ).create_engine_config()


def config(layout: Layout, *, is_async: bool, **options: object) -> Any:  # noqa: ANN401 - vLLM's own type.
    """Return a configuration of its own for a test; `options` are our scheduler's."""
    made = copy(engine_config())
    made.cache_config = copy(made.cache_config)
    made.scheduler_config = copy(made.scheduler_config)
    made.scheduler_config.async_scheduling = is_async
    made.cache_config.num_gpu_blocks = layout.num_blocks
    made.cache_config.mamba_cache_mode = "align"
    made.cache_config.block_size = layout.alignment  # Where steps of states have to end.
    made.additional_config = {"kvbraid": options}
    return made


def wait_for_copies(manager: Any) -> None:  # noqa: ANN401 - vLLM's own type.
    """Have vLLM's own manager refuse, until the next step, a hit that it would copy too early."""
    unwritten, groups = UnwrittenBlocks(), manager.coordinator.single_type_managers
    begin, allocate = manager.new_step_starts, manager.allocate_slots

    def new_step_starts() -> None:
        unwritten.start_step()
        begin()

    def allocate_slots(
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,  # noqa: ANN401 - vLLM's own type.
        **rest: object,
    ) -> Any:  # noqa: ANN401 - vLLM's own type.
        asked: Any = SimpleNamespace(
            key=request.request_id,
            num_computed_tokens=request.num_computed_tokens,
            num_hit_tokens=num_new_computed_tokens,
        )
        hits = new_computed_blocks
        if hits is not None and unwritten.has_to_wait(groups, asked, hits.blocks):
            return None
        given = (request, num_new_tokens, num_new_computed_tokens, new_computed_blocks)
        blocks = allocate(*given, **rest)
        if blocks is not None:
            unwritten.note(groups, asked)
        return blocks

    manager.new_step_starts, manager.allocate_slots = new_step_starts, allocate_slots


class NoGrammars:
    """Stands in for structured output, which no request asks for."""

    def accept_tokens(self, *_: object) -> bool:
        return True


def scheduler(kind: type, layout: Layout, made: Any) -> Any:  # noqa: ANN401 - vLLM's own types.
    return kind(
        vllm_config=made,
        kv_cache_config=layout.cache(),
        structured_output_manager=NoGrammars(),
        block_size=layout.alignment,
        hash_block_size=layout.unit,
        log_stats=True,
    )


class Engines:
    """Schedulers that do the same, and the steps whose tokens are to come.

    One on its own cache and one on ours; with options, which its own has not, ours alone.
    """

    def __init__(self, layout: Layout, *, is_async: bool, **options: object) -> None:
        self._random = Random(5)
        self._depth = 2 if is_async else 1
        kv_cache_utils.init_none_hash(sha256)
        self._hasher = kv_cache_utils.get_request_block_hasher(layout.unit, sha256)
        self.published: list[list[Any]] = []
        self.schedulers: list[Any] = []
        self._steps: deque[Any] = deque()
        self._num_made = 0
        for kind in KINDS[is_async][bool(options) :]:
            made = scheduler(kind, layout, self.config(layout, is_async=is_async, **options))
            if not isinstance(made, KvbraidScheduler | KvbraidAsyncScheduler):
                wait_for_copies(made.kv_cache_manager)
            self.published.append([])
            made.kv_event_publisher = SimpleNamespace(publish=self.published[-1].append)
            self.schedulers.append(made)
        self.num_preempted = 0
        self.num_copies = 0
        self.num_hits = 0

    def config(self, layout: Layout, *, is_async: bool, **options: object) -> Any:  # noqa: ANN401 - vLLM's own type.
        return config(layout, is_async=is_async, **options)

    def add(self, prompt: list[int], max_tokens: int) -> None:
        self._num_made += 1
        for made in self.schedulers:
            made.add_request(
                Request(
                    request_id=str(self._num_made),
                    prompt_token_ids=list(prompt),
                    sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                    pooling_params=None,
                    arrival_time=float(self._num_made),
                    block_hasher=self._hasher,
                )
            )

    def step(self) -> None:
        """Schedule a step; once enough are under way, make the first one's tokens up."""
        outputs = [made.schedule() for made in self.schedulers]
        expected = alike(plain(output) for output in outputs)
        self.num_preempted += len(expected["preempted"])
        self.num_copies += len(expected["copies"])
        self.num_hits += sum(computed > 0 for _, _, computed in expected["new"])
        running = self.schedulers[0].requests
        sampled = [
            [] if running[name].is_prefill_chunk else [self._random.randrange(50_000)]
            for name in outputs[0].num_scheduled_tokens
        ]
        self._steps.append((outputs, sampled))
        if len(self._steps) >= self._depth:
            self._process()

    def _process(self) -> None:
        outputs, sampled = self._steps.popleft()
        loads = self.loads()
        results = []
        for made, output in zip(self.schedulers, outputs, strict=True):
            names = list(output.num_scheduled_tokens)
            result = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[list(ids) for ids in sampled],
                kv_connector_output=loads,
            )
            results.append(told(made.update_from_output(output, result)))
        alike(results)
        # Ours publishes a reset at once, theirs with the next step.
        alike([e for batch in batches for e in batch.events] for batches in self.published)
        ours = self.schedulers[-1]
        held = [block.block_id for _, blocks in ours.deferred_frees for block in blocks]
        ours.kv_cache_manager.cache.debug.check_integrity(held)

    def loads(self) -> Any:  # noqa: ANN401 - vLLM's own type.
        """Return what the workers say of loads; None without a connector."""

    def abort(self) -> None:
        """Abort a request that is under way."""
        name = self._random.choice([*self.schedulers[0].requests, "none"])
        for made in self.schedulers:
            made.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset(self) -> None:
        """Forget the cache; what runs starts over."""
        alike(made.reset_prefix_cache(reset_running_requests=True) for made in self.schedulers)

    def live(self) -> None:
        """Go on for long: prompts share beginnings, requests are aborted, caches forgotten."""
        random = Random(3)
        known = [tokens(seed, 300) for seed in range(4)]
        for number in range(NUM_STEPS):
            if random.random() < 0.15:
                prompt = random.choice(known)[: random.choice((random.randrange(20, 300), 400))]
                prompt = prompt + tokens(number, random.randrange(1, 30))
                known = [*known[-5:], prompt]
                self.add(prompt, random.randrange(1, 60))
            if number % 40 == 39:
                self.abort()
            if number % 100 == 99:
                self.reset()
            self.step()


def alike(answers: Iterable[Any]) -> Any:  # noqa: ANN401 - vLLM's own types.
    """Return what all schedulers say."""
    first, *others = answers
    assert all(other == first for other in others), (first, others)
    return first


def plain(output: Any) -> dict[str, Any]:  # noqa: ANN401 - vLLM's own type.
    """Return all that a step says of blocks."""
    cached = output.scheduled_cached_reqs
    return {
        "tokens": output.num_scheduled_tokens,
        "new": [
            (new.req_id, new.block_ids, new.num_computed_tokens)
            for new in output.scheduled_new_reqs
        ],
        "cached": (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens),
        "preempted": sorted(output.preempted_req_ids or ()),
        "finished": sorted(output.finished_req_ids),
        "zero": output.new_block_ids_to_zero,
        "copies": output.kv_cache_block_copies or [],
    }


def told(outputs: dict[int, Any]) -> list[Any]:
    """Return what clients are told of a step, statistics included."""
    said: list[Any] = []
    for client in outputs.values():
        said += [
            (output.request_id, output.new_token_ids, output.finish_reason, output.prefill_stats)
            for output in client.outputs
        ]
        stats = client.scheduler_stats
        if stats is not None:
            said.append((stats.kv_cache_usage, stats.prefix_cache_stats))
    return said
