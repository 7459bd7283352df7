"""Trees that differ in what SGLang's events do not carry, against what is said of them.

The model keeps, for each space, the prefixes that its tree holds. A space is an extra key or a
load of the adapter. Hashes cover the space or do not, as in the engine's two event formats.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.engine import EngineProfile
from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

POD = PodId("a")
PAGE = 2
SGLANG = EngineDialect.SGLANG
TOPOLOGY = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=PAGE),))
Tokens: TypeAlias = tuple[int, ...]


@dataclass
class Engine:
    """One tree for each space; stores, evicts leaves and flushes as SGLang does."""

    hashes_spaces: bool
    lora: str | None = None
    spaces: dict[int, set[Tokens]] = field(default_factory=dict)
    twice: set[Tokens] = field(default_factory=set)
    """What two spaces held at once since the last flush."""

    def hash(self, space: int, prefix: Tokens) -> int:
        of = (space if self.hashes_spaces else 0, prefix)
        return int.from_bytes(blake2b(repr(of).encode(), digest_size=8).digest(), "big")

    def hit(self, space: int, prompt: Tokens) -> int:
        held = self.spaces.get(space, set())
        most = (len(prompt) - 1) // PAGE * PAGE
        return next((n for n in range(0, most, PAGE) if prompt[: n + PAGE] not in held), most)

    def store(self, space: int, prompt: Tokens) -> Iterator[Event]:
        held = self.spaces.setdefault(space, set())
        for start in range(0, len(prompt) - PAGE + 1, PAGE):
            prefix = prompt[: start + PAGE]
            if prefix in held:
                continue
            if any(prefix in other for other in self.spaces.values()):
                self.twice.add(prefix)
            held.add(prefix)
            yield BlockStored(
                block_hashes=(self.hash(space, prefix),),
                parent_block_hash=self.hash(space, prompt[:start]) if start else None,
                token_ids=prefix[start:],
                block_size=PAGE,
                lora_name=self.lora,
            )

    def evict(self, rng: random.Random) -> Iterator[Event]:
        held = [(space, prefix) for space, tree in self.spaces.items() for prefix in sorted(tree)]
        if held:
            space, prefix = rng.choice(held)
            tree = self.spaces[space]
            for gone in sorted((p for p in tree if p[: len(prefix)] == prefix), key=len)[::-1]:
                tree.remove(gone)
                yield BlockRemoved(block_hashes=(self.hash(space, gone),))

    def flush(self) -> Iterator[Event]:
        self.spaces, self.twice = {}, set()
        yield AllBlocksCleared()


def an_index(engine: EngineProfile) -> FleetIndex:
    index = FleetIndex()
    index.register(POD, model="m", topology=TOPOLOGY, engine=engine)
    return index


def bounds(index: FleetIndex, prompt: Tokens, lora: str | None = None) -> tuple[int, int]:
    (row,) = index.score(Request(model="m", token_ids=list(prompt), lora=lora)).rows
    return row.lower, row.upper


def tell(index: FleetIndex, events: Iterator[Event]) -> None:
    index.apply(POD, encode_batch(list(events)))
    index.check_integrity()


def a_prompt(rng: random.Random) -> Tokens:
    return tuple(rng.randrange(2) for _ in range(rng.randrange(1, 10)))


SEEDS = st.integers(0, 2**32)


@given(seed=SEEDS, hashed=st.booleans(), declared=st.booleans(), spaces=st.integers(1, 3))
def test_extra_keys_bound_the_chains_of_two_spaces_or_all_if_declared(
    seed: int, hashed: bool, declared: bool, spaces: int
) -> None:
    rng = random.Random(seed)
    engine = Engine(hashes_spaces=hashed)
    index = an_index(EngineProfile(dialect=SGLANG, extra_keys=declared))
    for _ in range(60):
        prompt, space = a_prompt(rng), rng.randrange(spaces)
        truth, (lower, upper) = engine.hit(space, prompt), bounds(index, prompt)
        assert truth <= upper
        if declared:
            assert lower == 0
        elif spaces == 1:
            assert lower == truth == upper
        elif prompt[:PAGE] in engine.twice:
            assert lower == 0
        what = rng.random()
        events = engine.store(space, prompt) if what < 0.7 else engine.evict(rng)
        tell(index, engine.flush() if what > 0.97 else events)
    assert index.pods()[0].state is PodState.EXACT


@given(seed=SEEDS, declared=st.booleans())
def test_an_adapter_loaded_again_is_never_promised_what_earlier_loads_left(
    seed: int, declared: bool
) -> None:
    """Once its newest load has shown: a prompt of the one shown before begins otherwise."""
    rng = random.Random(seed)
    engine = Engine(hashes_spaces=True, lora="poet")
    index = an_index(EngineProfile(dialect=SGLANG, adapter_reloads=declared))
    load = shown = 0
    begun: dict[Tokens, int] = {}
    since: set[Tokens] = set()
    for _ in range(80):
        prompt = a_prompt(rng)
        truth, (lower, upper) = engine.hit(load, prompt), bounds(index, prompt, "poet")
        assert truth <= upper
        if declared:
            assert lower == 0
        elif load == 0:
            assert lower == truth == upper
        elif load == shown:
            unsure = (n for n in range(0, truth, PAGE) if prompt[: n + PAGE] not in since)
            assert lower == next(unsure, truth)
        what = rng.random()
        if what < 0.6:
            before = set(engine.spaces.get(load, ()))
            tell(index, engine.store(load, prompt))
            new, first = engine.spaces[load] - before, prompt[:PAGE]
            if first in new:
                if begun.get(first, load) != load and (shown == 0 or first in since):
                    shown, since = load, set()
                begun[first] = load
            since |= new if shown else set()
        elif what < 0.9:
            tell(index, engine.evict(rng))
        elif what < 0.95 and load < 3:
            load += 1
    assert index.pods()[0].state is PodState.EXACT


def first_hash(page: Tokens, salt: str | None, extra_key: str | None) -> int:
    """A first page's hash in SGLang's `dynamo` format, after its sources (0.5.23)."""
    tokens = b"".join(token.to_bytes(4, "little") for token in page)
    if salt is not None:
        tokens = sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest() + tokens
    plain = sha256(tokens).digest()[:8]
    if salt is None and extra_key is None:
        return int.from_bytes(plain, "big")
    space = sha256(b"sglang-kv-event-namespace-v1")
    for part in (extra_key, salt):
        known = b"" if part is None else part.encode()
        space.update(b"\0" if part is None else b"\1" + len(known).to_bytes(8, "little") + known)
    return int.from_bytes(sha256(space.digest() + plain).digest()[:8], "big")


@dataclass
class DynamoEngine(Engine):
    """Spaces are pairs of an extra key and a salt."""

    keys: tuple[tuple[str | None, str | None], ...] = ()

    def hash(self, space: int, prefix: Tokens) -> int:
        key, salt = self.keys[space]
        if len(prefix) == PAGE:
            return first_hash(prefix, salt, key)
        return super().hash(space, prefix)


@given(seed=SEEDS, declared=st.booleans())
def test_where_hashes_cover_extra_keys_a_request_that_names_its_own_is_answered_exactly(
    seed: int, declared: bool
) -> None:
    rng = random.Random(seed)
    keys = ((None, None), ("k", None), ("k", "s"), ("ké", None), (None, "s"))
    engine = DynamoEngine(hashes_spaces=True, keys=keys)
    profile = EngineProfile(dialect=SGLANG, extra_keys=declared, event_format="dynamo")
    index = an_index(profile)
    tell(index, engine.store(0, (9, 9)))
    for _ in range(60):
        prompt, space = a_prompt(rng), rng.randrange(len(keys))
        key, salt = keys[space]
        request = Request(model="m", token_ids=list(prompt), cache_salt=salt, extra_key=key)
        (row,) = index.score(request).rows
        if len(prompt) >= PAGE:
            assert row.lower == row.upper == engine.hit(space, prompt)
        events = engine.store(space, prompt) if rng.random() < 0.7 else engine.evict(rng)
        tell(index, engine.flush() if rng.random() > 0.97 else events)
    assert index.pods()[0].refused == {}
