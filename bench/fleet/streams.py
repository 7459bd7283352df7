"""Synthetic event streams, as an engine would publish them; the same bytes for every consumer.

Streams are seeded and made on the fly: a generator yields batches in publishing order and keeps
only what it needs to continue. Blocks have 16 tokens and one full-attention group unless a stream
says otherwise, so every consumer can index them. Events are encoded with msgspec, independently of
the measured package.
"""

import hashlib
import pickle
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

BLOCK: Final = 16
VOCABULARY: Final = 150_000
NUM_PODS: Final = 64
EVENTS_PER_EVENT_BATCH: Final = 8
MIX_WINDOW: Final = 1_024
PREFILL_BLOCKS: Final = 128  # An engine stores this many at once: a chunk of 2 048 tokens.

Event = dict[str, Any]
Tokens = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.uint64]

_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Batch:
    """One message of one pod."""

    pod: int
    payload: bytes
    num_events: int
    num_stored: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive blocks: `BLOCK` tokens and one engine hash each."""

    tokens: Tokens
    hashes: Hashes

    @classmethod
    def random(cls, rng: np.random.Generator, num_blocks: int) -> "Chain":
        """Return blocks that no other chain has."""
        return cls(
            rng.integers(0, VOCABULARY, num_blocks * BLOCK, dtype=np.uint32),
            rng.integers(0, 1 << 64, num_blocks, dtype=np.uint64),
        )

    @classmethod
    def hashed(cls, rng: np.random.Generator, num_blocks: int, *, seed: str) -> "Chain":
        """Return blocks with the hashes that vLLM's default function gives them."""
        tokens = rng.integers(0, VOCABULARY, num_blocks * BLOCK, dtype=np.uint32)
        parent = hashlib.sha256(pickle.dumps(seed, protocol=5)).digest()
        hashes = []
        for block in tokens.reshape(-1, BLOCK).tolist():
            message = pickle.dumps((parent, tuple(block), None), protocol=5)
            parent = hashlib.sha256(message).digest()
            hashes.append(int.from_bytes(parent[-8:], "big"))
        return cls(tokens, np.array(hashes, dtype=np.uint64))

    def __len__(self) -> int:
        return len(self.hashes)

    def __add__(self, other: "Chain") -> "Chain":
        return Chain(
            np.concatenate((self.tokens, other.tokens)),
            np.concatenate((self.hashes, other.hashes)),
        )


def stored(
    chain: Chain,
    begin: int,
    end: int,
    *,
    group: int = 0,
    kind: str = "full_attention",
    window: int | None = None,
) -> Event:
    """Return the event that stores blocks `[begin, end)` of the chain, in vLLM 0.32's form."""
    event: Event = {
        "type": "BlockStored",
        "block_hashes": chain.hashes[begin:end].tolist(),
        "parent_block_hash": int(chain.hashes[begin - 1]) if begin else None,
        "token_ids": chain.tokens[begin * BLOCK : end * BLOCK].tolist(),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * (end - begin),
        "group_idx": group,
        "kv_cache_spec_kind": kind,
    }
    if window is not None:
        event["kv_cache_spec_sliding_window"] = window
    return event


def removed(chain: Chain, begin: int, end: int, *, group: int = 0) -> list[Event]:
    """Return one event per block of `[begin, end)`, last block first, as vLLM evicts."""
    return [
        {
            "type": "BlockRemoved",
            "block_hashes": [block_hash],
            "medium": "GPU",
            "group_idx": group,
        }
        for block_hash in reversed(chain.hashes[begin:end].tolist())
    ]


def batch(pod: int, events: list[Event]) -> Batch:
    """Encode one message."""
    num_stored = sum(len(e["block_hashes"]) for e in events if e["type"] == "BlockStored")
    return Batch(pod, _encode([0.0, events, 0]), len(events), num_stored)


def prefill_events(chain: Chain, begin: int, end: int) -> list[Event]:
    """Return stores of `[begin, end)`, one per prefill chunk."""
    return [
        stored(chain, start, min(start + PREFILL_BLOCKS, end))
        for start in range(begin, end, PREFILL_BLOCKS)
    ]


def shared_chain(num_blocks: int, *, num_pods: int = NUM_PODS, seed: int = 1) -> Iterator[Batch]:
    """Every pod stores the same chain, with 128 blocks per event and one event per batch."""
    chain = Chain.random(np.random.default_rng(seed), num_blocks)
    for event in prefill_events(chain, 0, num_blocks):
        message = batch(0, [event])
        for pod in range(num_pods):
            yield Batch(pod, message.payload, 1, message.num_stored)


def one_block_events(num_blocks: int, *, seed: int = 2) -> Iterator[Batch]:
    """Stores of one block each over 64 pods, then their removals, with 16 events per batch."""
    rng = np.random.default_rng(seed)
    per_pod = num_blocks // NUM_PODS
    chains = [Chain.random(rng, per_pod) for _ in range(NUM_PODS)]
    for begin in range(0, per_pod, 16):
        end = min(begin + 16, per_pod)
        for pod, chain in enumerate(chains):
            yield batch(pod, [stored(chain, i, i + 1) for i in range(begin, end)])
    for end in range(per_pod, 0, -16):
        begin = max(0, end - 16)
        for pod, chain in enumerate(chains):
            yield batch(pod, removed(chain, begin, end))


@dataclass(slots=True)
class _Session:
    """A conversation: its blocks so far, and the pods that hold them."""

    chain: Chain
    pod: int
    turns_left: int
    prompt_blocks: int
    moves_before_turn: int  # Zero: the session stays on its first pod.
    prompt_held: dict[int, int]  # Per pod, how many blocks of the system prompt it holds.
    held: dict[int, int] = field(default_factory=dict)  # The same for the whole session.


def _of_seed(event: Event, pod: int) -> Event:
    """Return a store as a pod publishes it whose hashes are those of no other pod."""
    own = (pod + 1) * 0x9E37_79B9_7F4A_7C15 % (1 << 64)
    parent = event["parent_block_hash"]
    return {
        **event,
        "block_hashes": [block_hash ^ own for block_hash in event["block_hashes"]],
        "parent_block_hash": None if parent is None else parent ^ own,
    }


@dataclass(slots=True)
class Mix:
    """Agents and chats over shared system prompts; `sessions` fills as the stream is consumed.

    There are 12 system prompts of 16 to 256 blocks, chosen by a Zipf law. 24 sessions have 2 100
    blocks; the others are chats, half of whose blocks are one-block decode events. 15 % of the
    chats move to another pod before their last turn; the new pod stores all of the history that it
    lacks. A pod stores each block once in each of its groups: one of full attention, and as many
    windows as `num_windows`. With `own_seeds` no two pods give a block the same hash.
    """

    num_stored_blocks: int
    seed: int = 3
    keep_sessions: int = 256
    num_windows: int = 0
    own_seeds: bool = False
    sessions: list[Chain] = field(default_factory=list)

    def __iter__(self) -> Iterator[Batch]:
        rng = np.random.default_rng(self.seed)
        pending: defaultdict[int, list[Event]] = defaultdict(list)
        count = 0
        for pod, event in self._events(rng):
            told = self._of_groups(_of_seed(event, pod) if self.own_seeds else event)
            pending[pod] += told
            count += len(told) * len(event["block_hashes"])
            if len(pending[pod]) >= EVENTS_PER_EVENT_BATCH:
                yield batch(pod, pending.pop(pod))
            if count >= self.num_stored_blocks:
                break
        yield from (batch(pod, events) for pod, events in pending.items())

    def _of_groups(self, event: Event) -> list[Event]:
        window = {
            "kv_cache_spec_kind": "sliding_window",
            "kv_cache_spec_sliding_window": MIX_WINDOW,
        }
        groups = range(1, self.num_windows + 1)
        return [event, *({**event, **window, "group_idx": group} for group in groups)]

    def _events(self, rng: np.random.Generator) -> Iterator[tuple[int, Event]]:
        prompts = [Chain.random(rng, int(n)) for n in np.geomspace(16, 256, 12)]
        weights = 1 / np.arange(1, len(prompts) + 1)
        weights /= weights.sum()
        held: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for number in range(24):
            chain = Chain.random(rng, 2_100)
            self._remember(chain)
            yield from ((number % NUM_PODS, event) for event in prefill_events(chain, 0, 2_100))
        live: list[_Session] = []
        while True:
            if len(live) < 4 * NUM_PODS or rng.random() < 0.2:
                prompt = int(rng.choice(len(prompts), p=weights))
                live.append(
                    _Session(
                        chain=prompts[prompt],
                        pod=int(rng.integers(NUM_PODS)),
                        turns_left=int(rng.integers(2, 8)),
                        prompt_blocks=len(prompts[prompt]),
                        moves_before_turn=int(rng.random() < 0.15),
                        prompt_held=held[prompt],
                    )
                )
            yield from self._turn(rng, live, int(rng.integers(len(live))))

    def _turn(
        self, rng: np.random.Generator, live: list[_Session], index: int
    ) -> Iterator[tuple[int, Event]]:
        """One question (a prefill of what the pod lacks) and its answer (decode events)."""
        session = live[index]
        if session.turns_left == session.moves_before_turn:
            session.pod = int(rng.integers(NUM_PODS))
        half = int(rng.integers(4, 24))
        known = len(session.chain)
        session.chain += Chain.random(rng, 2 * half)
        asked = known + half
        lacking = session.held.get(session.pod, session.prompt_held.get(session.pod, 0))
        events = prefill_events(session.chain, lacking, asked)
        yield from ((session.pod, event) for event in events)
        for block in range(asked, asked + half):
            yield session.pod, stored(session.chain, block, block + 1)
        session.held[session.pod] = len(session.chain)
        session.prompt_held.setdefault(session.pod, session.prompt_blocks)
        session.turns_left -= 1
        if session.turns_left == 0:
            self._remember(live.pop(index).chain)

    def _remember(self, chain: Chain) -> None:
        if len(self.sessions) < self.keep_sessions:
            self.sessions.append(chain)


def queries(sessions: list[Chain], num_tokens: int, *, count: int, seed: int = 4) -> list[Tokens]:
    """Return prompts whose first 87.5 % are a session's prefix (less if a session is short)."""
    rng = np.random.default_rng(seed)
    known = num_tokens * 7 // 8
    prompts = []
    for _ in range(count):
        prefix = sessions[int(rng.integers(len(sessions)))].tokens[:known]
        fresh = rng.integers(0, VOCABULARY, num_tokens - len(prefix), dtype=np.uint32)
        prompts.append(np.concatenate((prefix, fresh)))
    return prompts
