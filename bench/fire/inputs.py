"""Inputs that once cost more than their size justifies, from engines that publish or clients.

Each function makes, for a size n, the batches that come in before the clock runs, those that are
timed, and the prompt that is asked afterwards. Blocks have one token unless a shape says
otherwise, so a megabyte holds as many blocks as possible. If the value of an engine hash does not
matter, it is a small number; hashes that no event stores begin at `UNKNOWN`. Nothing here applies
or times anything.
"""

import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from kvbraid.engine import EngineProfile
from kvbraid.hashing import MediaItem
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind

MEGABYTE: Final = 1_000_000
UNKNOWN: Final = 1 << 40

Event: TypeAlias = dict[str, Any]

encode: Final = msgspec.msgpack.Encoder().encode

ONE_TOKEN: Final = (GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=1),)
SIXTEEN: Final = (GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),)
VLLM: Final = EngineProfile()
LEARNED: Final[tuple[GroupSpec, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """One input: `before` is applied first, `batches` one by one, then `prompt` is asked.

    The pod is registered with the topology of `groups`; without groups, its events tell them. Its
    engine behaves as `engine` says.
    """

    batches: Sequence[bytes] = ()
    before: Sequence[bytes] = ()
    prompt: "array[int] | None" = None
    media: Sequence[MediaItem] = ()
    groups: tuple[GroupSpec, ...] = ONE_TOKEN
    num_pods: int = 1
    engine: EngineProfile = VLLM


Shape: TypeAlias = Callable[[int], Fire]


def stored(
    hashes: Iterable[int],
    parent: int | None,
    tokens: Iterable[int],
    block_size: int = 1,
    **fields: object,
) -> Event:
    """Return a store event; further fields have their names on the wire."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        **fields,
    }


def removed(hashes: Iterable[int], **fields: object) -> Event:
    """Return a removal event."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), **fields}


def batch(events: Iterable[object]) -> bytes:
    """Encode one message."""
    return encode([0.0, list(events)])


def batches(events: Iterable[Event], per_batch: int) -> list[bytes]:
    """Encode messages of `per_batch` events."""
    listed = list(events)
    return [batch(listed[at : at + per_batch]) for at in range(0, len(listed), per_batch)]


def same(token: int, count: int) -> "array[int]":
    """Return a prompt of one token, many times."""
    return array("I", [token]) * count


# ---- what is undecided -------------------------------------------------------------------------


def sparse_halves(n: int) -> Fire:
    """n hashes in 2n blocks, then every second hash again, and then the others."""
    tokens, hashes = range(2 * n), range(1, n + 1)
    stores = [stored(listed, None, tokens) for listed in (hashes, hashes[::2], hashes[1::2])]
    return Fire(batches=[batch([store]) for store in stores], prompt=array("I", tokens))


def backwards(n: int) -> Fire:
    """A prompt of n blocks, stored from its end to its start, in one batch."""
    events = (stored([i], i + 1 if i < n else None, [i % 1_000]) for i in range(1, n + 1))
    return Fire(batches=[batch(events)])


def backwards_apart(n: int) -> Fire:
    """The same as `backwards`, in n batches."""
    events = (stored([i], i + 1 if i < n else None, [i % 1_000]) for i in range(1, n + 1))
    return Fire(batches=batches(events, 1))


def _children(n: int) -> bytes:
    return batch(stored([UNKNOWN + i], i, [7]) for i in range(1, n + 1))


def late_parents(n: int) -> Fire:
    """n children of unknown parents, then one store that names these parents."""
    parents = stored(range(1, n + 1), None, (i % 50_000 for i in range(n)))
    return Fire(batches=[_children(n), batch([parents])])


def late_root(n: int) -> Fire:
    """The same as `late_parents`, but the parents follow a hash that is stored last."""
    root = 2 * UNKNOWN
    parents = stored(range(1, n + 1), root, (i % 50_000 for i in range(n)))
    return Fire(batches=[_children(n), batch([parents]), batch([stored([root], None, [3])])])


def evicted_tries(n: int) -> Fire:
    """n stores with one first token after unknown parents; limbo exceeds its limit on the way."""
    events = (stored([i + 1], UNKNOWN + i, [7]) for i in range(n))
    return Fire(batches=batches(events, 8_192), groups=LEARNED)


def sparse_in_turn(n: int) -> Fire:
    """Two root stores of one hash in two blocks, alternating, n in all."""
    pair = [stored([1], None, [7, 8]), stored([2], None, [7, 9])]
    return Fire(batches=[batch(pair * (n // 2))])


def sparse_overlap(n: int) -> Fire:
    """n pairs of hashes, each overlapping the previous pair, all in the same eight blocks."""
    events = (stored([i, i + 1], None, range(8)) for i in range(1, n + 1))
    return Fire(batches=[batch(events)])


# ---- names -------------------------------------------------------------------------------------


def clears_of_names(n: int) -> Fire:
    """n clears in one batch, for a pod that holds nothing and knows 8 192 names."""
    known = batch([stored(range(1, 8_193), None, range(8_192))])
    return Fire(
        before=[known, batch([{"type": "AllBlocksCleared"}])],
        batches=[batch([["AllBlocksCleared"]] * n)],
    )


def clears_of_blocks(n: int) -> Fire:
    """150 000 blocks and n clears in one batch."""
    store = stored(range(1, 150_001), None, [1] * 150_000)
    return Fire(batches=[batch([store, *[{"type": "AllBlocksCleared"}] * n])])


def one_tag(n: int) -> Fire:
    """n hashes that one well-known multiplier maps to the same 32-bit tag."""
    inverse = pow(0x9E37_79B9_7F4A_7C15, -1, 1 << 64)
    products = ((0x1234_5678 << 32 | low) * inverse % (1 << 64) for low in range(n))
    hashes = [product ^ product >> 32 for product in products]
    return Fire(batches=[batch([stored(hashes, None, [5] * n)])])


def channels(n: int) -> Fire:
    """Stores without tokens by n owners, and a prompt of 64 tokens."""
    events = (stored([i + 1], None, (), 0, ownership=f"{i}") for i in range(n))
    return Fire(before=batches(events, 8_192), prompt=same(7, 64), groups=SIXTEEN)


# ---- groups that no event tells of --------------------------------------------------------------


def _chain(first: int, last: int) -> list[bytes]:
    """Pages of one token in order, at most 64 000 in a batch."""
    pages = range(first, last + 1)
    parts = (pages[start : start + 64_000] for start in range(0, len(pages), 64_000))
    return [
        batch([stored(part, part[0] - 1 or None, (page % 100 for page in part), medium="GPU")])
        for part in parts
    ]


def _prompt(num_pages: int) -> "array[int]":
    """The tokens of as many pages, and one more."""
    return array("I", (page % 100 for page in range(1, num_pages + 2)))


def _of_windows(window: int, chunk: int | None = None) -> dict[str, Any]:
    """A pod of SGLang with windows, and the tokens that it computes at once."""
    groups = (*ONE_TOKEN, GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=1, window=window))
    engine = EngineProfile(dialect=EngineDialect.SGLANG, chunked_prefill_size=chunk)
    return {"groups": groups, "engine": engine}


def silent_pages(n: int) -> Fire:
    """n stores of one page after a chain of 4 096, all in the window that each of them shows."""
    leaves = (stored([10_000 + i], 4_096, [i % 100], medium="GPU") for i in range(n))
    return Fire(before=_chain(1, 4_096), batches=[batch(leaves)], **_of_windows(4_097))


def silent_chunk(n: int) -> Fire:
    """A chain of n pages, of which each is a chunk, with a window of 8 192."""
    return Fire(batches=_chain(1, n), **_of_windows(8_193, chunk=1))


def routed_long(n: int) -> Fire:
    """A request of n pages that are all there."""
    return Fire(before=_chain(1, n), prompt=_prompt(n), **_of_windows(129, chunk=64))


def routed_waits(n: int) -> Fire:
    """A request of n pages, its pages but the last, 200 small batches, and the last page."""
    gone = [batch([removed([UNKNOWN + i])]) for i in range(200)]
    return Fire(
        before=_chain(1, 1),
        batches=[*_chain(2, n - 1), *gone, *_chain(n, n)],
        prompt=_prompt(n),
        **_of_windows(129, chunk=64),
    )


# ---- answers -----------------------------------------------------------------------------------


def growing_windows(n: int) -> Fire:
    """Windows of 256 blocks, stored n times while a prompt of at least 8 192 blocks grows."""
    ends = [8_192 + 128 * k for k in range(n)]
    spec: Event = {
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 257,
        "group_idx": 0,
    }
    return Fire(
        batches=[
            batch([stored(range(end - 255, end + 1), None, range(end), **spec)]) for end in ends
        ],
        prompt=array("I", range(ends[-1])),
        groups=LEARNED,
    )


def shifted_states(n: int) -> Fire:
    """n states among 16 n blocks, then all of them but the first, and one more."""
    spec: Event = {"kv_cache_spec_kind": "mamba", "group_idx": 0}
    tokens = [i & 127 for i in range(16 * n)]
    stores = [
        stored(range(1, n + 1), None, tokens, **spec),
        stored(range(2, n + 2), None, tokens + tokens[:16], **spec),
    ]
    return Fire(
        batches=[batch([store]) for store in stores], prompt=array("I", tokens), groups=LEARNED
    )


def floating_trie(n: int) -> Fire:
    """n hashes after an unknown parent, and a prompt of 65 536 tokens; all tokens are the same."""
    store = stored(range(1, n + 1), UNKNOWN, [7] * n)
    return Fire(batches=[batch([store])], prompt=same(7, 65_536))


def lookahead(n: int) -> Fire:
    """A block that depends on n further tokens, and a prompt of a million tokens."""
    spec: Event = {
        "kv_cache_spec_kind": "full_attention",
        "group_idx": 0,
        "lookahead_token_ids": [[5] * n],
    }
    store = stored([1], None, [5] * 16, 16, **spec)
    return Fire(before=[batch([store])], prompt=same(5, 1 << 20), groups=LEARNED)


def media_items(n: int) -> Fire:
    """n media items that overlap, 65 536 tokens, and a model whose blocks look one token ahead."""
    spec: Event = {
        "kv_cache_spec_kind": "full_attention",
        "group_idx": 0,
        "lookahead_token_ids": [[5]],
    }
    return Fire(
        before=[batch([stored([1], None, [5], **spec)])],
        prompt=same(5, 1 << 16),
        media=[MediaItem(identifier="x" * 10, offset=i, length=5) for i in range(n)],
        groups=LEARNED,
    )


def explained(n: int) -> Fire:
    """A prompt of n tokens that 8 pods hold in a full group and in a window of 128."""
    rng = random.Random(1)
    tokens = [rng.getrandbits(17) for _ in range(n)]
    groups = (
        GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),
        GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=128),
    )
    kinds: tuple[Event, ...] = (
        {"group_idx": 0, "kv_cache_spec_kind": "full_attention"},
        {
            "group_idx": 1,
            "kv_cache_spec_kind": "sliding_window",
            "kv_cache_spec_sliding_window": 128,
        },
    )
    hashes = range(1, n // 16 + 1)
    events = [stored(hashes, None, tokens, 16, **kind) for kind in kinds]
    return Fire(before=[batch(events)], prompt=array("I", tokens), groups=groups, num_pods=8)


def many_blocks(n: int) -> Fire:
    """n blocks of 16 tokens in one honest batch, in four events."""
    rng = random.Random(2)
    quarter = n // 4
    events = [
        stored((rng.getrandbits(64) for _ in range(quarter)), None, [i] * (16 * quarter), 16)
        for i in range(4)
    ]
    return Fire(batches=[batch(events)], groups=SIXTEEN)
