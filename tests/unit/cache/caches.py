"""Caches for unit tests: short names, whole lives of requests, a picture of all that shows."""

from array import array
from collections.abc import Sequence
from typing import Any

from kvbraid.cache import CacheConfig, CacheManager, Need, PolicyChoice, Work
from kvbraid.hashing import NO_EXTRA_KEYS, EngineHash, ExtraKeys, block_hashes
from kvbraid.spec import GroupSpec, SpecKind, Topology


def full(block_size: int = 16, **more: Any) -> GroupSpec:  # noqa: ANN401 - fields of the spec
    return GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=block_size, **more)


def window(tokens: int, block_size: int = 16, **more: Any) -> GroupSpec:  # noqa: ANN401
    kind = SpecKind.SLIDING_WINDOW
    return GroupSpec(kind=kind, block_size=block_size, window=tokens, **more)


def chunked(tokens: int, block_size: int = 16) -> GroupSpec:
    kind = SpecKind.CHUNKED_LOCAL_ATTENTION
    return GroupSpec(kind=kind, block_size=block_size, chunk=tokens)


def mamba(block_size: int = 16) -> GroupSpec:
    return GroupSpec(kind=SpecKind.MAMBA, block_size=block_size)


def config(
    *groups: GroupSpec,
    num_blocks: int = 64,
    topology: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401 - fields of the configuration
) -> CacheConfig:
    """Pure rule, seeded hashes, events on."""
    return CacheConfig(
        topology=Topology(groups=groups, **(topology or {})),
        num_blocks=num_blocks,
        **{"hash_seed": "0", "events": True, **more},
    )


class FreesAtOnce(CacheManager):
    """The ends of copies are freed as they are taken, as vLLM does without steps in flight."""

    def take_work(self, *, caller_frees: bool = False) -> Work:
        work = super().take_work(caller_frees=True)
        if not caller_frees:
            self.pool.free([block for pair in work.copies for block in pair])
        return work


def compute(cache: CacheManager, request: int, ends: Sequence[int], *, hit: int = 0) -> None:
    """Compute a request's tokens in steps that end at `ends`, from its hit on."""
    start, junction = hit, cache.match(request).junction
    for end in ends:
        cache.start_step()
        need = Need(request=request, num_new_tokens=end - start)
        if start == hit:
            need.num_hit_tokens, need.junction = hit, junction
        assert cache.allocate([need]).num_fit == 1
        start = end


def leave(
    cache: CacheManager,
    tokens: Sequence[int],
    step: int,
    *,
    extra: ExtraKeys = NO_EXTRA_KEYS,
) -> None:
    """Have a request compute all its tokens, `step` at a time, and go; nothing may be evicted."""
    request = cache.add(tokens, extra=extra)
    ends = [*range(step, len(tokens), step), len(tokens)]
    compute(cache, request, ends)
    cache.take_work()
    cache.release([request])


def blocks_held(cache: CacheManager, tokens: Sequence[int], unit: int) -> list[set[int]]:
    """Per group, the ends in tokens of the prefixes of `tokens` that can be found."""
    engine = EngineHash(block_size=unit, seed="0")
    ends = {digest: (n + 1) * unit for n, digest in enumerate(block_hashes(tokens, engine))}
    held: list[set[int]] = [set() for _ in range(cache.num_groups)]
    for group, digest in cache.debug.cached():
        held[group].add(ends[digest])  # type: ignore[index]
    return held


def picture(cache: CacheManager, requests: Sequence[int]) -> object:
    """All that a caller can see, to compare before and after."""
    return (
        [(cache.blocks(request), cache.match(request)) for request in requests],
        cache.debug.cached(),
        cache.debug.free_queue(),
        cache.pool.num_free,
        cache.pool.usage,
        cache.pool.num_held,
    )


def is_played(block_hash: bytes, one_in: int) -> bool:
    """Whether simulated caches that play one in so many families play that of a block."""
    key = int.from_bytes(block_hash[-8:], "big")
    return (key * 0x9E37_79B9_7F4A_7C15 % 2**64 >> 32) % one_in == 0


def play(cache: CacheManager, hashes: list[bytes], block_size: int) -> PolicyChoice:
    """Compute a prompt of these blocks and one more token; return what the cache chose then."""
    num_tokens = block_size * len(hashes) + 1
    request = cache.add(array("I", bytes(4 * num_tokens)), block_hashes=hashes)
    match = cache.match(request)
    need = Need(request=request, num_new_tokens=num_tokens - match.num_tokens, match=match)
    assert cache.allocate([need]).num_fit == 1
    cache.take_work()
    cache.start_step()
    cache.release([request])
    choice = cache.policy_choice()
    assert choice is not None
    return choice
