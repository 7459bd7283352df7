"""Simulated engines whose events a test understands: what they publish, and what it means.

Every event is truthful; everything else is as inconvenient as the wire allows: sparse stores, any
order of groups, children before their parents, parents that are never published, copies without
tokens, removals of blocks that were never stored. `publish` tells the index and the model the
same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from kvbraid.engine import EngineProfile
from kvbraid.events import encode_batch
from kvbraid.events.model import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbraid.fleet.index import FleetIndex
from kvbraid.hashing import EngineHash, ExtraKeys, HashAlgo, Lora, block_keys
from kvbraid.ids import PodId, Tier
from kvbraid.spec import EngineDialect, Topology

from tests.reference import resume as rule
from tests.reference.fleet_index import Prefix, RankModel

LORAS = {"a": "/adapters/a", "b": "/adapters/b"}
TWIN = 1 << 62
MEDIUM = {Tier.GPU: "GPU", Tier.CPU: "CPU", Tier.STORAGE: "STORAGE"}


class Hashes:
    """One engine's names of prefixes: its real hash function, or 0, 1, 2 in the order of use."""

    def __init__(self, block_size: int, algo: HashAlgo | None, seed: str = "7") -> None:
        self.block_size = block_size
        self.meaning: dict[int, Prefix] = {}
        self._names: dict[Prefix, int] = {}
        self._engine = algo and EngineHash(algo, seed=seed, block_size=block_size)
        self.profile = EngineProfile(
            dialect=EngineDialect.PURE, hash_algo=algo, hash_seed=algo and seed
        )

    def of(self, prompt: Prefix) -> list[int]:
        """The chain of a prompt: hash n covers (n + 1) * block_size tokens."""
        size = self.block_size
        ends = range(size, len(prompt.tokens) + 1, size)
        prefixes = [prompt.cut(end) for end in ends]
        if self._engine is None:
            keys = [self._names.setdefault(prefix, len(self._names)) for prefix in prefixes]
        else:
            lora = prompt.lora and Lora(prompt.lora, LORAS[prompt.lora])
            extra = ExtraKeys(lora=lora or None, cache_salt=prompt.salt)
            keys = block_keys(list(prompt.tokens), self._engine, extra)
        self.meaning.update(zip(keys, prefixes, strict=True))
        return keys

    def twin(self, block_hash: int) -> int:
        """Another hash of the same prefix."""
        twin = block_hash ^ TWIN
        self.meaning[twin] = self.meaning[block_hash]
        return twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How often an engine does what; each is a probability."""

    sparse: float = 0.3
    orphan: float = 0.3
    partial: float = 0.2
    other_tier: float = 0.1
    restart: float = 0.03
    unknown_removal: float = 0.1
    twins: float = 0.0


@dataclass(slots=True)
class Engine:
    """One rank: what it holds (`model`), and what it has not sent yet (`pending`).

    Its batches come by one `feed`; where that is another rank's, they name their own.
    """

    pod: PodId
    dp_rank: int
    topology: Topology
    hashes: Hashes
    habits: Habits
    random: Random
    feed: int = 0
    model: RankModel = field(init=False)
    pending: list[Event] = field(init=False, default_factory=list)
    removed: int = field(init=False, default=0)
    _sized: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.model = RankModel(self.topology, self.hashes.meaning)

    def act(self, prompts: Sequence[Prefix]) -> None:
        """Do one thing that an engine does."""
        actions: list[tuple[int, Callable[[Prefix], None]]] = [
            (8, self.prefill),
            (3, self.evict),
            (2, self.offload),
            (2, self.store_parts),
            (2 if self.habits.twins else 0, self.store_twins),
        ]
        weights, choices = zip(*actions, strict=True)
        self.random.choices(choices, weights)[0](self.random.choice(prompts))

    def prefill(self, prompt: Prefix) -> None:
        """Store a span of a prompt in every group, groups in any order, sometimes in two parts."""
        unit = self.hashes.block_size
        units = len(prompt.tokens) // unit
        if units == 0:
            return
        is_orphan = self.random.random() < self.habits.orphan
        start = self.random.randrange(units) * unit if is_orphan else 0
        end = self.random.randint(start // unit + 1, units) * unit
        middle = self.random.randint(start // unit, end // unit) * unit
        tier = Tier.GPU
        if self.random.random() < self.habits.other_tier:
            tier = self.random.choice((Tier.CPU, Tier.STORAGE))
        pieces = [
            (group, piece)
            for group in range(len(self.topology.groups))
            for piece in self.random.choice((((start, end),), ((start, middle), (middle, end))))
        ]
        self.random.shuffle(pieces)
        for group, (first, last) in pieces:
            size = self.topology.groups[group].block_size
            span = (first // size * size, last // size * size)
            self._store(group, prompt, span, size, tier)

    def store_parts(self, prompt: Prefix) -> None:
        """Store blocks smaller than their group's, at any boundary of the hash chain."""
        unit = self.hashes.block_size
        coarse = [i for i, g in enumerate(self.topology.groups) if g.block_size > unit]
        units = len(prompt.tokens) // unit
        if not coarse or units == 0 or self.random.random() > self.habits.partial:
            return
        group = self.random.choice(coarse)
        most = self.topology.groups[group].block_size // unit - 1
        size = self.random.randint(1, most) * unit
        start = 0
        if self.random.random() < self.habits.orphan:
            start = self.random.randrange(units) * unit
        # Several in one store contradict the group's size until one of that size has come.
        most = (len(prompt.tokens) - start) // size
        blocks = self.random.randint(0, most if group in self._sized else min(1, most))
        self._store(group, prompt, (start, start + blocks * size), size, Tier.GPU)

    def store_twins(self, prompt: Prefix) -> None:
        """Store the start of a prompt, and again under other hashes, as no engine should."""
        self.prefill(prompt)
        tiers = {medium: tier for tier, medium in MEDIUM.items()}
        for event in list(self.pending):
            if not isinstance(event, BlockStored) or event.parent_block_hash is not None:
                continue
            is_dense = len(event.token_ids) == len(event.block_hashes) * event.block_size > 0
            hashes = tuple(self.hashes.twin(block_hash) for block_hash in event.block_hashes)
            group, size = event.group_idx or 0, event.block_size
            grade = size == self.topology.groups[group].block_size
            held = (self.model.is_held(group, h, is_partial=grade) for h in hashes)
            if is_dense and not any(held) and self.random.random() < self.habits.twins:
                self.pending.append(replace(event, block_hashes=hashes))
                self.model.store(group, hashes, tiers[event.medium], size)
                self.model.tell(None, hashes)

    def offload(self, prompt: Prefix) -> None:
        """Announce copies on another tier by hash alone, sometimes of parts of blocks."""
        chain = self.hashes.of(prompt)
        group = self.random.randrange(len(self.topology.groups))
        is_part = self.random.random() < self.habits.partial
        step = 1 if is_part else self.topology.groups[group].block_size // self.hashes.block_size
        hashes = tuple(
            h for h in chain[step - 1 :: step] if self.random.random() < self.habits.other_tier
        )
        tier = self.random.choice((Tier.CPU, Tier.STORAGE))
        if hashes and not any(self.model.is_held(group, h, is_partial=True) for h in hashes):
            self.pending.append(
                BlockStored(
                    block_hashes=hashes,
                    parent_block_hash=None,
                    token_ids=(),
                    block_size=0,
                    medium=MEDIUM[tier],
                    group_idx=group,
                )
            )
            self.model.store(group, hashes, tier, 0)

    def evict(self, prompt: Prefix) -> None:
        """Take some copies away, sometimes such as never were."""
        group = self.random.randrange(len(self.topology.groups))
        tier = self.random.choice((Tier.GPU, Tier.GPU, Tier.CPU, Tier.STORAGE))
        keys = [k for k in +self.model.copies if (k.group, k.tier) == (group, tier)]
        hashes = [
            k.block_hash
            for k in self.random.sample(keys, min(len(keys), self.random.randint(0, 4)))
        ]
        if self.random.random() < self.habits.unknown_removal:
            hashes += self.hashes.of(prompt)[-1:]
        for block_hash in hashes:
            medium = MEDIUM[tier]
            self.pending.append(
                BlockRemoved(block_hashes=(block_hash,), medium=medium, group_idx=group)
            )
            self.removed += self.model.remove(group, [block_hash], tier)

    def clear(self) -> None:
        """Forget the GPU tier, and say so."""
        self.pending.append(AllBlocksCleared())
        self.model.clear()

    def restart(self) -> None:
        """Start anew with all sent."""
        assert not self.pending
        self.model.restart()
        self._sized.clear()

    def publish(self, index: FleetIndex, *, forgets: bool = False) -> None:
        """Send what waits, in one batch, in either encoding.

        An index that `forgets` for want of memory does not find all that is removed.
        """
        is_named = self.feed != self.dp_rank or self.random.random() < 0.5
        payload = encode_batch(
            self.pending,
            dp_rank=self.dp_rank if is_named else None,
            form=self.random.choice(("map", "array")),
        )
        applied = index.apply(self.pod, payload, dp_rank=self.feed)
        assert applied.refused == 0
        assert applied.removed == self.removed or (forgets and applied.removed < self.removed)
        self.pending, self.removed = [], 0

    def _store(
        self, group: int, prompt: Prefix, span: tuple[int, int], size: int, tier: Tier
    ) -> None:
        """Store the blocks of a span, all of them or some of them in their order."""
        start, end = span
        chain, unit = self.hashes.of(prompt), self.hashes.block_size
        ends = list(range(start + size, end + 1, size))
        if self.random.random() < self.habits.sparse:
            kept = self.random.choice((0.2, 0.5, 0.8))
            ends = [e for e in ends if self.random.random() < kept]
        hashes = tuple(chain[e // unit - 1] for e in ends)
        spec = self.topology.groups[group]
        other_grade = size == spec.block_size
        if start >= end or any(
            self.model.is_held(group, h, is_partial=other_grade) for h in hashes
        ):
            return  # A removal could not say which of the two it means.
        parent = chain[start // unit - 1] if start else None
        self.pending.append(
            BlockStored(
                block_hashes=hashes,
                parent_block_hash=parent,
                token_ids=prompt.tokens[start:end],
                block_size=size,
                medium=MEDIUM[tier],
                lora_name=prompt.lora,
                extra_keys=_extra_keys(prompt, [e - size for e in ends]),
                group_idx=group,
                kv_cache_spec_kind=spec.kind.value,
                kv_cache_spec_sliding_window=spec.window,
            )
        )
        self.model.store(group, hashes, tier, size)
        if tier is Tier.GPU and size == spec.block_size:
            self._sized.add(group)
        if hashes and len(hashes) == (end - start) // size:
            self.model.tell(parent, hashes)


def _extra_keys(
    prompt: Prefix, starts: Sequence[int]
) -> tuple[tuple[str, ...] | None, ...] | None:
    """The salt, at the first block of the prompt alone."""
    if prompt.salt is None and prompt.lora is None:
        return None
    salted = (prompt.salt,) if prompt.salt else None
    return tuple(salted if start == 0 else None for start in starts) if starts else None


def prompts(random: Random, unit: int, count: int, *, wide: bool = False) -> list[Prefix]:
    """Prompts that share prefixes, few tokens, so that stretches repeat, some salted.

    Wide tokens differ in their upper halves alone.
    """
    made: list[Prefix] = []
    letters = random.choice((1, 2, 5))
    step = 2**61 - 2**32 if wide else 1
    for _ in range(count):
        stem: tuple[int, ...] = ()
        if made:
            stem = random.choice(made).tokens
            stem = stem[: random.randint(0, len(stem))]
        tail = random.randint(0, max(0, random.choice((6, 14)) * unit - len(stem)))
        tokens = stem + tuple(step * random.randrange(letters) for _ in range(tail))
        salt = random.choice((None, None, None, None, "s", "t"))
        made.append(Prefix(tokens, salt, random.choice((None, None, None, "a", "b"))))
    return made


def request(random: Random, known: Sequence[Prefix]) -> Prefix:
    """A known prompt: whole, cut, continued, gone astray, or of somebody else."""
    prompt = random.choice(known)
    tokens = prompt.tokens
    kept = tokens[: random.randint(0, len(tokens))]
    endings = (tokens, (*tokens, 1), (*tokens, 1), kept, (*kept, 9), (*kept, 0, 1, 0, 1))
    tokens = random.choice(endings)
    other = random.choice(known)
    if random.random() < 0.2:
        prompt = prompt._replace(salt=random.choice((None, "s", "never seen")))
    if random.random() < 0.1:
        prompt = prompt._replace(lora=other.lora)
    return prompt._replace(tokens=tokens)


def unit_of(topology: Topology) -> int:
    """Tokens per hash of the engine's chain."""
    return rule.hash_block(topology)


def register(index: FleetIndex, engines: Sequence[Engine], ranks: Mapping[PodId, int]) -> None:
    """Make the pods of these engines known to an index."""
    for engine in engines:
        index.register(
            engine.pod,
            model="m",
            dp_size=ranks[engine.pod],
            topology=engine.topology,
            engine=engine.hashes.profile,
            loras=LORAS,
        )
