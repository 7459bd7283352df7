"""vLLM's own manager and ours get the same calls, and their answers are compared at once.

One `Request` object serves both: a manager reads it and does not change it.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Final

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from kvbraid.integrations.vllm import KvbraidCacheManager
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request, RequestStatus

SIZES: Final = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}


def full(block_size: int = 16, **more: Any) -> KVCacheSpec:  # noqa: ANN401
    return FullAttentionSpec(block_size=block_size, **SIZES, **more)


def window(tokens: int, block_size: int = 16, **more: Any) -> KVCacheSpec:  # noqa: ANN401
    return SlidingWindowSpec(block_size=block_size, sliding_window=tokens, **SIZES, **more)


def chunked(tokens: int, block_size: int = 16) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(block_size=block_size, attention_chunk_size=tokens, **SIZES)


def states(block_size: int = 16, mode: str = "align", **more: Any) -> KVCacheSpec:  # noqa: ANN401
    return MambaSpec(
        block_size=block_size,
        shapes=((8,),),
        dtypes=(torch.float32,),
        mamba_cache_mode=mode,
        **more,
    )


def config_of(*specs: KVCacheSpec, num_blocks: int, retention: int | None = 0) -> KVCacheConfig:
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)
        ],
        prefix_cache_retention_interval=retention,
    )


def tokens(seed: int, count: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(1, 50_000) for _ in range(count)]


class Pair:
    """Both managers. Not for calls that a scheduler would not make."""

    def __init__(self, config: KVCacheConfig, *, alignment: int, unit: int, **more: Any) -> None:  # noqa: ANN401
        settings = {
            "max_model_len": 4_096,
            "scheduler_block_size": alignment,
            "hash_block_size": unit,
            "enable_kv_cache_events": True,
            "log_stats": True,
        } | more
        self.theirs = KVCacheManager(config, **settings)
        self.ours = KvbraidCacheManager(config, **settings)
        kv_cache_utils.init_none_hash(sha256)
        self._hasher = kv_cache_utils.get_request_block_hasher(unit, sha256)
        self._num_made = 0
        self.num_events = 0
        self.num_copies = 0
        self.num_states = 0

    def request(self, prompt: Sequence[int], **more: Any) -> Request:  # noqa: ANN401
        self._num_made += 1
        extra_args = more.pop("extra_args", None)
        return Request(
            request_id=str(self._num_made),
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=1_000, extra_args=extra_args),
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._hasher,
            **more,
        )

    def both(self, name: str, *args: Any, **more: Any) -> Any:  # noqa: ANN401
        """Call a method of both, compare what they return as far as it is plain, and the state."""
        expected = getattr(self.theirs, name)(*args, **more)
        got = getattr(self.ours, name)(*args, **more)
        assert _plain(got) == _plain(expected), name
        self.compare()
        return got

    def start(
        self,
        request: Request,
        chunk: Callable[[int, int], int],
        **more: Any,  # noqa: ANN401
    ) -> int | None:
        """Look a request up and allocate for its first step; return the hit, None if it waits.

        `chunk` says how many tokens to compute, given the hit and the request's length.
        """
        theirs, hit, junction = self.theirs.get_computed_blocks(request)
        ours, *rest = self.ours.get_computed_blocks(request)
        assert rest == [hit, junction]
        assert ours.get_block_ids() == theirs.get_block_ids()
        request.shared_prefix_boundary = junction
        count = chunk(hit, request.num_tokens)
        blocks = [
            manager.allocate_slots(
                request,
                count,
                num_new_computed_tokens=hit,
                new_computed_blocks=found,
                **more,
            )
            for manager, found in ((self.theirs, theirs), (self.ours, ours))
        ]
        assert _plain(blocks[0]) == _plain(blocks[1])
        self.compare()
        if blocks[0] is None:
            return None
        request.num_computed_tokens = hit + count
        request.status = RequestStatus.RUNNING
        self._copy()
        return int(hit)

    def _copy(self) -> None:
        """Take the work of a step as the scheduler does, and let both ends of each copy go."""
        states = self.theirs.take_boundary_state_offloads()
        assert self.ours.take_boundary_state_offloads() == states
        self.num_states += sum(map(len, states.values()))
        expected, held = self.theirs.take_kv_cache_block_copies()
        copies, ours_held = self.ours.take_kv_cache_block_copies()
        assert copies == expected
        self.num_copies += len(copies)
        if copies:
            self.compare_blocks()
        assert self.ours.take_new_block_ids() == self.theirs.take_new_block_ids()
        self.theirs.block_pool.free_blocks(held)
        self.ours.block_pool.free_blocks(ours_held)
        self.compare()

    def step(self, request: Request, num_new_tokens: int, **more: Any) -> bool:  # noqa: ANN401
        """Allocate for a step of a running request; return whether it fitted."""
        blocks = self.both("allocate_slots", request, num_new_tokens, **more)
        if blocks is None:
            return False
        request.num_computed_tokens += num_new_tokens
        self._copy()
        return True

    def decode(self, request: Request, count: int) -> None:
        """Have a request sample tokens, and compute them."""
        for token in tokens(count, count):
            request.append_output_token_ids(token)
            assert self.step(request, 1)

    def preempt(self, request: Request) -> None:
        self.both("free", request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED

    def finish(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.both("estimate_cached_tokens", request)
            self.num_states += len(self.both("finalize_partial_tail_offloads", request))
            self.both("free", request)

    def compare(self) -> None:
        """Compare what both managers hold, and take their events."""
        assert self.ours.usage == self.theirs.usage
        theirs, ours = self.theirs.block_pool, self.ours.block_pool
        assert ours.get_num_free_blocks() == theirs.get_num_free_blocks()
        queue = [block.block_id for block in theirs.free_block_queue.get_all_free_blocks()]
        assert self.ours.cache.debug.free_queue() == queue
        events = self.theirs.take_events()
        assert self.ours.take_events() == events
        self.num_events += len(events)

    def compare_blocks(self) -> None:
        """Compare every block's properties."""
        for theirs, ours in zip(
            self.theirs.block_pool.blocks, self.ours.block_pool.blocks, strict=True
        ):
            assert ours.block_id == theirs.block_id
            assert ours.is_null == theirs.is_null
            assert ours.block_hash == theirs.block_hash
            if not theirs.is_null:  # Nobody counts references to the null block.
                assert ours.ref_cnt == theirs.ref_cnt
                assert ours.block_hash_num_tokens == theirs.block_hash_num_tokens


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return what can be compared of a result: ids instead of block objects."""
    if hasattr(value, "get_block_ids"):
        return value.get_block_ids()
    if hasattr(value, "block_id"):
        return value.block_id
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


LAYOUTS: dict[str, Callable[[], Pair]] = {
    "full": lambda: Pair(config_of(full(), num_blocks=40), alignment=16, unit=16),
    "full and window": lambda: Pair(
        config_of(window(40), full(), num_blocks=60), alignment=16, unit=16
    ),
    "dense windows": lambda: Pair(
        config_of(window(40), window(80), full(), num_blocks=80, retention=None),
        alignment=16,
        unit=16,
    ),
    "unequal blocks": lambda: Pair(
        config_of(window(60, 32), full(16), num_blocks=50), alignment=32, unit=16
    ),
    "window alone": lambda: Pair(config_of(window(40), num_blocks=30), alignment=16, unit=16),
    "chunks": lambda: Pair(config_of(chunked(64), full(), num_blocks=60), alignment=16, unit=16),
    "states": lambda: Pair(config_of(states(), full(), num_blocks=50), alignment=16, unit=16),
    "states inside blocks": lambda: Pair(
        config_of(states(64), full(64), num_blocks=30), alignment=64, unit=16
    ),
    "full on two ranks": lambda: Pair(
        config_of(full(16), num_blocks=30), alignment=32, unit=32, dcp_world_size=2
    ),
    "states on two ranks": lambda: Pair(
        config_of(states(32), full(16), num_blocks=50), alignment=32, unit=32, dcp_world_size=2
    ),
    "states inside blocks on four ranks": lambda: Pair(
        config_of(full(16), states(32), full(32, dcp_sharded=False), num_blocks=60),
        alignment=64,
        unit=16,
        dcp_world_size=4,
    ),
    "a replicated window on two ranks": lambda: Pair(
        config_of(window(40, dcp_sharded=False), full(16), num_blocks=80),
        alignment=32,
        unit=16,
        dcp_world_size=2,
    ),
    "full on two prefill ranks": lambda: Pair(
        config_of(full(), num_blocks=40), alignment=16, unit=16, pcp_world_size=2
    ),
}


def chunk(start: int, end: int) -> int:
    """Return how long a chunk may be: it ends where a state can be kept, as schedulers see to."""
    stops = (start // 64 * 64 + 64, (end - 1) // 16 * 16, end)
    return min(stop for stop in stops if stop > start) - start


def prefill(pair: Pair, request: Request) -> int | None:
    """Compute a whole prompt in chunks; return the hit of the first, None if one does not fit."""
    pair.both("new_step_starts")
    hit = pair.start(request, chunk, full_sequence_must_fit=True)
    while hit is not None and request.num_computed_tokens < request.num_tokens:
        pair.both("new_step_starts")
        if not pair.step(request, chunk(request.num_computed_tokens, request.num_tokens)):
            return None
    return hit
