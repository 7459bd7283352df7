"""Our cache as a `Side`.

Only the public interface of `kvbraid.cache` is used. If it leaves a choice to the caller (which
side counts computed tokens, which side hashes), the configuration decides.
"""

import os
from collections import Counter
from collections.abc import Sequence

from kvbraid.cache import (
    Allocation,
    CacheConfig,
    CacheManager,
    Dense,
    GroupOptions,
    Interval,
    Need,
)
from kvbraid.hashing import EngineHash, ExtraKeys, HashAlgo, block_hashes
from kvbraid.ids import BlockHash, BlockId
from kvbraid.spec import EngineDialect, GroupSpec, Topology

from tests.vllm.lockstep.configs import STATE, WINDOWS, Config
from tests.vllm.lockstep.side import Ask, Blocks, Hit, NewRequest

HASH_SEED = os.environ.get("PYTHONHASHSEED")


def topology_of(config: Config) -> Topology:
    """Return the configuration as our own types say it."""
    return Topology(
        groups=tuple(
            GroupSpec(
                kind=group.kind,
                block_size=group.block_size,
                window=group.window,
                chunk=group.chunk,
                eagle=group.eagle,
                variant=2 * group.is_wide + group.is_replicated,
            )
            for group in config.groups
        ),
        alignment=config.alignment,
        hash_block_size=config.hash_block_size,
        partial_hits=config.partial_hits,
    )


def manager_of(config: Config) -> CacheManager:
    """Build our manager."""
    options = tuple(
        GroupOptions(
            num_speculative_blocks=config.num_draft_tokens if group.kind is STATE else 0,
            extra_retained_tokens=(
                config.num_reprefillable_tokens if group.kind in WINDOWS else 0
            ),
            needs_zeroing=config.needs_zeroing and group.kind is not STATE,
            is_replicated=group.is_replicated,
            checkpoint_alignment=config.checkpoint_alignment if group.kind is STATE else None,
        )
        for group in config.groups
    )
    return CacheManager(
        CacheConfig(
            topology=topology_of(config),
            dialect=EngineDialect.VLLM,
            hash_seed=HASH_SEED,
            num_blocks=config.num_blocks,
            group_options=options,
            caching=config.caching,
            events=config.events,
            retention=Dense() if config.retention is None else Interval(config.retention),
            max_model_len=config.max_model_len,
            max_in_flight_tokens=config.max_in_flight_tokens,
            watermark=config.watermark,
            num_reprefillable_tokens=config.num_reprefillable_tokens,
            partial_junctions=config.partial_junctions,
            decode_context_parallel=config.num_ranks,
        )
    )


class Ours:
    """Our manager as a `Side`."""

    def __init__(self, config: Config) -> None:
        self.manager = manager_of(config)
        self._config = config
        self._hash = EngineHash(HashAlgo.SHA256, HASH_SEED, config.hash_block_size)
        self._handles: dict[int, int] = {}
        self._tokens: dict[int, tuple[list[int], ExtraKeys]] = {}
        self._outside: Counter[int] = Counter()  # References that the driver holds.

    def add(self, request: NewRequest) -> None:
        self._tokens[request.key] = (list(request.tokens), request.extra)
        self._handles[request.key] = self.manager.add(
            request.tokens,
            extra=request.extra,
            lora_id=request.lora_id,
            session_id=request.session_id,
            block_hashes=self._hashes(request.key),
        )

    def extend(self, key: int, tokens: Sequence[int]) -> None:
        num_known = len(self._tokens[key][0]) // self._config.hash_block_size
        self._tokens[key][0].extend(tokens)
        hashes = self._hashes(key, num_known)
        self.manager.extend(self._handles[key], tokens, block_hashes=hashes)

    def _hashes(self, key: int, num_known: int = 0) -> list[BlockHash] | None:
        """Return the hashes of a request that are new, where the caller is to give them."""
        if not self._config.gives_hashes:
            return None
        return block_hashes(self._tokens[key][0], self._hash, self._tokens[key][1])[num_known:]

    def start_step(self) -> None:
        outside = [BlockId(block_id) for block_id in self._outside.elements()]
        self.manager.debug.check_integrity(outside)
        self.manager.start_step()

    def match(self, key: int) -> Hit:
        return Hit(*self.manager.match(self._handles[key]))

    def allocate(self, asks: Sequence[Ask], reserved_blocks: int) -> list[Blocks]:
        needs = [self._need(ask) for ask in asks]
        return _fitting(self.manager.allocate(needs, reserved_blocks=reserved_blocks))

    def _need(self, ask: Ask) -> Need:
        return Need(
            request=self._handles[ask.key],
            num_new_tokens=ask.num_new_tokens,
            num_hit_tokens=ask.num_hit_tokens,
            junction=ask.junction,
            num_external_tokens=ask.num_external_tokens,
            num_lookahead_tokens=ask.num_lookahead_tokens,
            num_in_flight_tokens=ask.num_in_flight_tokens,
            num_computed_tokens=ask.num_computed_tokens if self._config.tells_computed else None,
            delay_commit=ask.delay_commit,
            loading_groups=ask.loading_groups,
            full_sequence_must_fit=ask.full_sequence_must_fit,
            is_waiting=ask.is_waiting,
        )

    def decode(self, keys: Sequence[int], tokens: Sequence[int]) -> list[Blocks]:
        if self._config.gives_hashes:
            for key, token in zip(keys, tokens, strict=True):
                self.extend(key, (token,))
            return self.allocate([self._next(key) for key in keys], 0)
        for key, token in zip(keys, tokens, strict=True):
            self._tokens[key][0].append(token)
        requests = [self._handles[key] for key in keys]
        done = self.manager.decode(requests, tokens)
        # The engine's requests have their tokens before it asks for blocks.
        for request, token in zip(requests[done.num_fit :], tokens[done.num_fit :], strict=True):
            self.manager.extend(request, [token])
        return _fitting(done)

    def _next(self, key: int) -> Ask:
        computed = len(self._tokens[key][0]) - 1
        return Ask(key=key, num_new_tokens=1, num_computed_tokens=computed)

    def commit(self, key: int, num_tokens: int) -> None:
        self.manager.commit(self._handles[key], num_tokens)

    def free_skipped(self, key: int, num_processed_tokens: int) -> None:
        self.manager.free_skipped(self._handles[key], num_processed_tokens)

    def release(self, keys: Sequence[int]) -> None:
        self.manager.release([self._handles.pop(key) for key in keys])

    def preempt(self, key: int) -> None:
        self.manager.preempt([self._handles[key]])

    def pop_blocks(self, key: int) -> list[int]:
        block_ids: list[int] = list(self.manager.pop_blocks(self._handles.pop(key)))
        self._outside.update(block_id for block_id in block_ids if block_id)
        return block_ids

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        self._outside.subtract(block_id for block_id in block_ids if block_id)
        self.manager.pool.free([BlockId(block_id) for block_id in block_ids])

    def zero_again(self, key: int, start_token: int) -> None:
        self.manager.record_blocks_for_zeroing(self._handles[key], start_token)

    def roll_back(self, key: int, num_computed_tokens: int) -> None:
        self.manager.roll_back(self._handles[key], num_computed_tokens)

    def forget(self, block_ids: Sequence[int]) -> None:
        self.manager.pool.forget([BlockId(block_id) for block_id in set(block_ids)])

    def reset(self) -> bool:
        return self.manager.reset()

    def take_work(self, caller_frees: bool) -> tuple[list[tuple[int, int]], list[int]]:
        work = self.manager.take_work(caller_frees=caller_frees)
        if caller_frees:
            self._outside.update(block_id for copy in work.copies for block_id in copy)
        return list(work.copies), list(work.blocks_to_zero)

    def take_events(self) -> bytes:
        events = self.manager.take_events()
        assert len(events.structs()) == len(events)
        return events.to_bytes(0.0, 0) if len(events) else b""

    def num_free_blocks(self) -> int:
        return self.manager.pool.num_free

    def free_queue(self) -> list[int]:
        return list(self.manager.debug.free_queue())

    def tables(self, keys: Sequence[int]) -> list[Blocks]:
        return [_plain(self.manager.blocks(self._handles[key])) for key in keys]

    def resident(self) -> dict[tuple[int, bytes], list[int]]:
        return {key: list(copies) for key, copies in self.manager.debug.cached().items()}


def _fitting(allocation: Allocation) -> list[Blocks]:
    return [_plain(allocation.new_blocks(index)) for index in range(allocation.num_fit)]


def _plain(groups: list[list[BlockId]]) -> Blocks:
    return [list(blocks) for blocks in groups]
