"""What one pod's engine does with its cache, apart from what its model needs (`spec.Topology`).

Frozen data, validated in the constructor: how the engine looks prefixes up, how it hashes, and
what it publishes.
"""

from dataclasses import dataclass
from typing import Final

from kvbraid.hashing import HashAlgo
from kvbraid.reading import POSITIVE_COUNT, check_fields, one_of, whole
from kvbraid.spec import EngineDialect, SilentGroup, SpecKind

REPORT_MODES: Final = ("incremental", "full")
"""Whether an engine announces only new copies, or also reused blocks."""

EVENT_FORMATS: Final = ("default", "dynamo")
"""What SGLang's hashes cover: tokens and salts, or extra keys too."""


_KINDS: Final = {
    "dialect": EngineDialect,
    "hash_algo": HashAlgo | None,
    "hash_seed": str | None,
    "report_mode": one_of(REPORT_MODES),
    "retention": whole().or_none(),
    "num_gpu_blocks": POSITIVE_COUNT.or_none(),
    "event_format": one_of(EVENT_FORMATS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """How an engine behaves: by default as vLLM does, with an unknown hash function.

    Attributes:
        dialect: The engine whose departures from the resume rule its look-ups follow.
        hash_algo: Its hash function; None: those that need no seed of its own are tried.
        hash_seed: The text of its PYTHONHASHSEED; None: not set.
        report_mode: `full`: reused blocks are announced again, although no copy was made.
        retention: Its `prefix_cache_retention_interval` in tokens. An engine that has one keeps
            whole windows; sparse stores are placed by them if the hash function is unknown.
        num_gpu_blocks: The blocks of its pool on the GPU, as the engine counts them (vLLM's
            `num_gpu_blocks`, which includes the null block). After a loss of messages they bound
            what the GPU may hold of which no message told, so answers become exact again. This
            needs listed groups; it has no effect for SGLang, with `report_mode` `full`, with
            partial hits, and once an entry inside a block was stored.
        extra_keys: Requests have an `extra_key` that neither events nor hashes show, so what is
            held may be another key's: lower bounds are 0.
        event_format: SGLang's `format` of events. In `dynamo`, hashes cover extra keys and salts,
            so a request that names its `extra_key` is answered exactly.
        adapter_reloads: Adapters are loaded again under their names, which no event tells: lower
            bounds of requests for an adapter are 0.
        unsent_tokens: By kind, the window or chunk of learned groups whose events do not carry it.
        model_groups: The kind and window of each group that the model has, where groups are
            learned. Until events have told of them all, lower bounds are 0.
        silent_pools_never_short: Of an SGLang engine: the memory of its windows and states never
            runs out before that of full attention. True of windows at `--swa-full-tokens-ratio`
            1.0; true of states if there are at least as many slots as full-attention tokens
            divided by the alignment, and one for each running request, and without
            `--mamba-max-states-per-path`. Lower bounds then count on every window and state that
            was ever stored; if it is not true they can be too high.
        window_pool_tokens: Of an SGLang engine: the tokens that the memory of its windows has room
            for. This and the next two improve the expected value, and no bound counts on them.
        state_slots: The states that it has room for.
        chunked_prefill_size: The most tokens of a prompt that it computes at once; None: it does
            not cut prompts, or works on many requests at a time.
        silent_groups: Of an SGLang engine whose groups are learned: those besides the full
            attention that its events tell of. None: not known, so nothing can be promised.

    Raises:
        InvalidValueError: No engine has the report mode, a number of tokens is negative, or a pool
            has no block.
    """

    dialect: EngineDialect = EngineDialect.VLLM
    hash_algo: HashAlgo | None = None
    hash_seed: str | None = None
    report_mode: str = "incremental"
    retention: int | None = None
    num_gpu_blocks: int | None = None
    extra_keys: bool = False
    adapter_reloads: bool = False
    event_format: str = "default"
    unsent_tokens: tuple[tuple[SpecKind, int], ...] = ()
    model_groups: tuple[tuple[SpecKind, int | None], ...] = ()
    silent_pools_never_short: bool = False
    window_pool_tokens: int | None = None
    state_slots: int | None = None
    chunked_prefill_size: int | None = None
    silent_groups: tuple[SilentGroup, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse values that no engine has."""
        check_fields(self, _KINDS)
