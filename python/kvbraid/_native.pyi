"""Types of the native core; checked against the built module by stubtest."""

from collections.abc import Sequence
from typing import TypeAlias, final

from typing_extensions import Buffer

from kvbraid.cache.step import Labels, Need
from kvbraid.hashing import EngineHash, ExtraKeys
from kvbraid.ids import BlockId

__all__ = [
    "CacheCore",
    "FleetAnswer",
    "FleetCore",
    "PayloadDigest",
    "__version__",
    "decode_batch",
    "encode_events",
    "engine_chain",
    "engine_chain_keys",
    "engine_none_hash",
    "find_token_ids",
    "needed_blocks",
    "resume",
    "resume_accepted",
    "resume_limiting",
    "resume_present",
]

__version__: str

def engine_none_hash(algo: str, seed: str | None) -> bytes | None: ...
def engine_chain(
    engine: EngineHash, tokens: Buffer | Sequence[int], extra: ExtraKeys
) -> bytes: ...
def engine_chain_keys(
    engine: EngineHash, tokens: Buffer | Sequence[int], extra: ExtraKeys
) -> list[int]: ...

# kind, block_size, window, chunk, eagle, prefix_cacheable, variant
_GroupTuple: TypeAlias = tuple[str, int, int | None, int | None, bool, bool, int]
# groups, alignment, hash_block_size, partial_hits, replay_tokens, hash_lookahead, dialect names
_TopologyTuple: TypeAlias = tuple[Sequence[_GroupTuple], int, int, bool, int, int, Sequence[str]]
# unit in tokens, words of whole blocks per group, words of interior entries per group
_HeldTuple: TypeAlias = tuple[int, Sequence[Sequence[int]], Sequence[Sequence[int]]]
# num_tokens, mask of holders, whether unknown groups need everything (else nothing)
_QueryTuple: TypeAlias = tuple[int, int, bool]

def resume(topology: _TopologyTuple, held: _HeldTuple, query: _QueryTuple) -> list[int]: ...
def resume_present(
    topology: _TopologyTuple, held: _HeldTuple, query: _QueryTuple
) -> list[int]: ...
def resume_accepted(
    topology: _TopologyTuple, held: _HeldTuple, query: _QueryTuple, group: int
) -> list[int] | None: ...
def resume_limiting(
    topology: _TopologyTuple, held: _HeldTuple, query: _QueryTuple, answers: Sequence[int]
) -> list[tuple[int, int] | None]: ...
def needed_blocks(group: _GroupTuple, boundary: int) -> tuple[int, int]: ...
def decode_batch(
    payload: bytes,
) -> tuple[float | None, int | None, list[tuple[object, ...]], list[tuple[str, int | None]]]:
    """Decode one published payload into `(ts, dp_rank, events, refused)`.

    Events in the order of `events.model` fields, after their tag: `("BlockStored", hashes, parent,
    tokens, block_size, lora_id, medium, lora_name, extra_keys, group, kind, window, remote, owner,
    lookahead, salt)`, `("BlockRemoved", hashes, medium, group, remote, owner)` and
    `("AllBlocksCleared",)`. A refusal is `(reason, index of the event or None)`. Never raises for
    bad bytes.
    """

# use_hash_functions, counts_copies, all_groups, memory_limit_bytes, limbo_limit_bytes, weights,
# canonical_block_size, max_ranks, secret (32 bytes; None: drawn at random)
_OptionsTuple: TypeAlias = tuple[
    bool, bool, bool, int, int, Sequence[float], int, int, bytes | None
]
# model, dp_size, topology, only_full_is_published, full_reports and keeps_whole_windows, hash
# algorithm, seed, LoRA paths, kinds with the window or chunk that events do not carry
_PodTuple: TypeAlias = tuple[
    str,
    int,
    _TopologyTuple | None,
    bool,
    tuple[bool, bool],
    str | None,
    str | None,
    dict[str, str],
    Sequence[tuple[str, int]],
]
# The model, LoRA, salt, media as (identifier, offset, length), pods, tiers, strategy.
_RequestTuple: TypeAlias = tuple[
    str,
    str | None,
    str | None,
    Sequence[tuple[str, int, int]],
    Sequence[str] | None,
    Sequence[str],
    str,
]
# index, kind, block size, window, chunk, eagle
_KnownGroup: TypeAlias = tuple[int | None, str, int, int | None, int | None, bool]
_Strip: TypeAlias = tuple[_KnownGroup, list[bool], list[int] | None]
# The pod, rank, model, state with reason, messages, groups, placed by means and unplaced, refused,
# (hash function, blocks)
_InfoTuple: TypeAlias = tuple[
    str,
    int,
    str,
    tuple[str, str],
    int,
    list[_KnownGroup],
    tuple[int, int, int, int],
    dict[str, int],
    tuple[str, int],
]

@final
class FleetAnswer:
    def to_json(self) -> bytes: ...
    def __len__(self) -> int: ...

@final
class FleetCore:
    def __new__(cls, options: _OptionsTuple) -> FleetCore: ...
    def register(self, name: str, pod: _PodTuple) -> bool: ...
    def remove(self, name: str) -> None: ...
    def apply(self, name: str, dp_rank: int, payload: bytes) -> tuple[int, int, int, int]: ...
    def apply_many(
        self, name: str, dp_rank: int, payloads: Sequence[bytes], budget_us: int
    ) -> list[tuple[int, int, int, int]]: ...
    def reset(self, name: str, dp_rank: int) -> None: ...
    def lose(self, name: str, dp_rank: int) -> None: ...
    def set_state(self, name: str, dp_rank: int, state: str, reason: str) -> None: ...
    def note_refused(self, name: str, dp_rank: int, reason: str) -> None: ...
    def score(self, request: _RequestTuple, tokens: Buffer | Sequence[int]) -> FleetAnswer: ...
    def try_score(
        self, request: _RequestTuple, tokens: Buffer | Sequence[int]
    ) -> FleetAnswer | None: ...
    def explain(
        self, request: _RequestTuple, tokens: Buffer | Sequence[int]
    ) -> tuple[FleetAnswer, list[tuple[str, list[_Strip]]]]: ...
    def pods(self) -> list[_InfoTuple]: ...
    def models(self) -> list[str]: ...
    def memory_bytes(self) -> int: ...
    def enforce_limits(self) -> None: ...
    def check_integrity(self) -> None: ...

def find_token_ids(body: bytes) -> tuple[bytes, int, int] | None: ...

# speculative blocks, extra retained tokens, needs zeroing, is a ring
_GroupOptionsTuple: TypeAlias = tuple[int, int, bool, bool, int | None]
# retention: an interval; or by value: checkpoint interval, cost per token and per pair
_RetentionArg: TypeAlias = int | tuple[int, float, float]
# topology, options per group, blocks, caching, events, retention (None: dense)
_CacheConfigTuple: TypeAlias = tuple[
    _TopologyTuple, Sequence[_GroupOptionsTuple], int, bool, bool, _RetentionArg | None
]
# model length, tokens in flight, watermark blocks, re-prefillable tokens, frees skipped when full,
# partial junctions
_LimitsTuple: TypeAlias = tuple[int, int | None, int, int, bool, bool]
# requests that fit; block ids and counts as buffers of native 32-bit integers
_AllocationTuple: TypeAlias = tuple[int, bytes, bytes]

@final
class CacheCore:
    def __new__(
        cls,
        config: _CacheConfigTuple,
        limits: _LimitsTuple,
        hash: tuple[str, bytes] | None,
    ) -> CacheCore: ...
    def add(
        self,
        tokens: Buffer | Sequence[int],
        num_prompt_tokens: int,
        extra: ExtraKeys,
        labels: Labels,
        hashes: Sequence[bytes] | None,
    ) -> int: ...
    def extend(
        self,
        request: int,
        tokens: Buffer | Sequence[int],
        hashes: Sequence[bytes] | None,
        to_prompt: bool,
    ) -> None: ...
    def match(self, request: int) -> tuple[int, int]: ...
    def allocate(self, needs: Sequence[Need], reserved_blocks: int) -> _AllocationTuple: ...
    def decode(
        self, requests: Sequence[int], tokens: Buffer | Sequence[int]
    ) -> _AllocationTuple: ...
    def commit(self, request: int, num_tokens: int) -> None: ...
    def free_skipped(self, request: int, num_tokens: int) -> None: ...
    def release(self, requests: Sequence[int]) -> None: ...
    def preempt(self, requests: Sequence[int]) -> None: ...
    def pop_blocks(self, request: int) -> list[BlockId]: ...
    def free_blocks(self, blocks: Sequence[BlockId]) -> None: ...
    def roll_back(self, request: int, num_computed_tokens: int) -> None: ...
    def truncate(self, request: int, num_tokens: int) -> None: ...
    def forget(self, blocks: Sequence[BlockId]) -> None: ...
    def reset(self) -> bool: ...
    def start_step(self) -> None: ...
    def blocks(self, request: int) -> list[list[BlockId]]: ...
    def hit_blocks(self, request: int, num_tokens: int) -> list[list[BlockId]]: ...
    def describe(
        self, blocks: Sequence[BlockId]
    ) -> list[tuple[int, tuple[int, bytes, int] | None]]: ...
    def progress(self, request: int) -> tuple[int, int, int, int]: ...
    def fresh_states(self) -> list[tuple[int, bytes]]: ...
    def cursors(self, request: int) -> list[tuple[int | None, int | None]]: ...
    def take_state_tails(self, request: int) -> list[tuple[int, int, BlockId, int]]: ...
    def blocks_needed(self, need: Need, is_admission: bool) -> int: ...
    def take_blocks(self, count: int) -> list[BlockId]: ...
    def hold_blocks(self, blocks: Sequence[BlockId]) -> None: ...
    def register(self, block: BlockId, group: int, hash: bytes, num_tokens: int) -> None: ...
    def unregister(self, block: BlockId, group: int, hash: bytes) -> bool: ...
    def holders(self, group: int, hash: bytes) -> list[BlockId]: ...
    def kept_blocks(
        self, group: int, blocks: tuple[int, int], boundaries: Sequence[int]
    ) -> list[bool] | None: ...
    def take_work(
        self, caller_frees: bool
    ) -> tuple[
        list[tuple[BlockId, BlockId]], list[BlockId], list[tuple[int, int, BlockId, int]]
    ]: ...
    def take_events(self) -> tuple[bytes, int]: ...
    def take_statistics(
        self,
    ) -> tuple[
        tuple[int, int, int],
        tuple[int, int, int],
        tuple[int, int, int, int, int, int],
    ]: ...
    def num_common_prefix_blocks(self, requests: Sequence[int]) -> list[int]: ...
    def num_free_blocks(self) -> int: ...
    def blocks_for(self, num_tokens: int) -> int: ...
    def cached(self) -> list[tuple[int, bytes, list[BlockId]]]: ...
    def free_queue(self) -> list[BlockId]: ...
    def checkpoints(self) -> list[tuple[bytes, int, float, bool]]: ...
    def memory_bytes(self) -> int: ...
    def check_integrity(self, outside: Sequence[BlockId]) -> None: ...

def encode_events(events: bytes, num_events: int, ts: float, dp_rank: int | None) -> bytes: ...

@final
class PayloadDigest:
    def __new__(cls) -> PayloadDigest: ...
    def of(self, payload: bytes) -> int: ...
    def of_each(self, payloads: Sequence[bytes]) -> list[int]: ...
