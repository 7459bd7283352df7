"""What failed loads mean for runs, natively and by the naive model, in the middle of random lives.

Requests with shared beginnings live on a real cache: they hit what others computed, load with and
without a delayed commit, keep steps in flight, pass windows, go back, are preempted and end. Then
loads fail in every form in which connectors report it. The native side is `CacheCore.assess` for
the live cache and `assess_snapshot` for a copy of its tables. Both have to say what the model
says, whatever the order of runs and reports.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.cache import CacheConfig, CacheManager, Need
from kvbraid.errors import InvalidValueError, KvbraidError, UnknownError
from kvbraid.ids import BlockId
from kvbraid.loads import Failures, GroupBlock
from kvbraid.recovery import Assessment, GivenBack, Ignored, Run, Snapshot, assess, snapshot_of
from kvbraid.recovery.ledger.loading import can_compute
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference import recovery_model, resume
from tests.reference.cache_configs import BOTH_DIALECTS, cache_configs

NO_STATES = cache_configs().filter(
    lambda config: all(g.kind is not SpecKind.MAMBA for g in config.topology.groups)
)
CONFIGS = st.one_of(BOTH_DIALECTS, NO_STATES, NO_STATES)


@dataclass
class Life:
    """A request, and what an engine would remember of its run."""

    request: int
    tokens: list[int]
    num_known: int
    num_local: int = 0
    num_loaded: int = 0
    num_processed: int = 0
    num_computed: int = 0
    delays_commit: bool = False
    is_started: bool = False
    ended_tables: list[list[BlockId]] | None = None
    given_back: list[GivenBack] = field(default_factory=list)

    def as_run(self) -> Run:
        return Run(
            request=self.request,
            num_tokens=len(self.tokens),
            num_prompt_tokens=len(self.tokens),
            num_known_tokens=self.num_known,
            num_local_tokens=self.num_local,
            num_loaded_tokens=self.num_loaded,
            num_processed_tokens=self.num_processed,
            num_computed_tokens=self.num_computed,
            delays_commit=self.delays_commit,
            given_back=self.given_back,
            ended_tables=self.ended_tables,
        )


class World:
    """An engine that does anything that a cache lets it do, steered by one source of chance."""

    def __init__(self, config: CacheConfig, seed: int) -> None:
        self.cache = CacheManager(config)
        self.config = config
        self.random = Random(seed)
        self.lives: list[Life] = []
        self.ended: list[Life] = []
        self.held: list[BlockId] = []
        self.unit = resume.hash_block(config.topology)
        self.alignment = resume.alignment(config.topology)

    @property
    def groups(self) -> Sequence[GroupSpec]:
        return self.config.topology.groups

    def live(self, num_steps: int) -> None:
        steps = [self.add, self.start, self.compute, self.process] * 3
        steps += [self.commit, self.sample, self.end, self.go_back, self.hold]
        self.add()
        for _ in range(num_steps):
            self.random.choice(steps)()

    def hashes(self, tokens: Sequence[int]) -> list[bytes]:
        """One hash per hash block; tokens after it count too, where they do in the cache."""
        lookahead = self.config.topology.hash_lookahead
        ends = range(self.unit, len(tokens) - lookahead + 1, self.unit)
        text = [f"{tokens[: end + lookahead]}".encode() for end in ends]
        return [hashlib.sha256(t).digest() for t in text]

    def add(self) -> None:
        if len(self.lives) > 4:
            return
        length = self.random.randint(8, 40)
        change = self.random.choice((length, length, length, self.random.randint(0, length)))
        salt = self.random.randint(1, 3)
        tokens = [t if t < change else 100 * salt + t for t in range(length)]
        request = self.cache.add(tokens, block_hashes=self.hashes(tokens))
        self.lives.append(Life(request, tokens, len(tokens)))

    def any_of(self, *, started: bool) -> Life | None:
        lives = [life for life in self.lives if life.is_started is started]
        return self.random.choice(lives) if lives else None

    def start(self) -> None:
        life = self.any_of(started=False)
        if life is None:
            return
        hit = self.cache.match(life.request).num_tokens
        rest = len(life.tokens) - hit
        aligned = rest // self.alignment * self.alignment
        loaded = self.random.choice((0, self.random.randint(0, rest), aligned, aligned, rest))
        new = self.random.randint(0, rest - loaded) if loaded else self.random.randint(1, rest)
        delays = loaded > 0 and self.random.random() < 0.4
        need = Need(
            request=life.request,
            num_new_tokens=new,
            num_hit_tokens=hit,
            num_external_tokens=loaded,
            delay_commit=delays,
        )
        if self.allocate(need):
            life.is_started, life.delays_commit = True, delays
            life.num_local, life.num_loaded = hit, loaded
            life.num_processed, life.num_computed = hit + loaded, hit + loaded + new

    def allocate(self, need: Need) -> bool:
        self.cache.start_step()
        try:
            return self.cache.allocate([need]).num_fit == 1
        except KvbraidError:
            return False
        finally:
            self.cache.take_work()

    def compute(self) -> None:
        life = self.any_of(started=True)
        if life is None or life.num_computed >= len(life.tokens):
            return
        need = Need(
            request=life.request,
            num_new_tokens=self.random.randint(1, len(life.tokens) - life.num_computed),
            num_lookahead_tokens=self.random.choice((0, 0, 3)),
            num_in_flight_tokens=life.num_computed - life.num_processed,
            delay_commit=life.delays_commit,
        )
        before = self.cache.blocks(life.request)
        if self.allocate(need):
            life.num_computed += need.num_new_tokens
            self.note_given_back(life, before)

    def process(self) -> None:
        life = self.any_of(started=True)
        if life is None:
            return
        life.num_processed = self.random.randint(life.num_processed, life.num_computed)
        before = self.cache.blocks(life.request)
        self.cache.free_skipped(life.request, life.num_processed)
        self.note_given_back(life, before)

    def go_back(self) -> None:
        """In place; the load is cut there."""
        life = self.any_of(started=True)
        if life is None:
            return
        point = self.random.randint(0, life.num_processed)
        try:
            self.cache.tables.rewind(life.request, point)
        except KvbraidError:
            return
        life.num_processed = life.num_computed = point
        life.num_local = min(life.num_local, point)
        life.num_loaded = min(life.num_loaded, point - life.num_local)

    def note_given_back(self, life: Life, before: list[list[BlockId]]) -> None:
        end = life.num_local + life.num_loaded
        for group, (old, new) in enumerate(
            zip(before, self.cache.blocks(life.request), strict=True)
        ):
            size = self.groups[group].block_size
            for position in range(life.num_local // size, len(old)):
                # What comes after the load the run has computed: somebody else may have found it.
                counts = life.num_loaded if position * size < end else self.random.random() < 0.5
                if counts and old[position] and not new[position]:
                    copied = position * size < end and self.random.random() < 0.2
                    gone = GivenBack(group, position, old[position], copied)
                    life.given_back.append(gone)

    def commit(self) -> None:
        life = self.any_of(started=True)
        if life is not None and life.delays_commit and self.random.random() < 0.5:
            self.cache.commit(life.request, min(life.num_computed, len(life.tokens)))
            life.delays_commit = False

    def sample(self) -> None:
        life = self.any_of(started=True)
        if life is not None and life.num_computed >= len(life.tokens):
            before = len(self.hashes(life.tokens))
            life.tokens.append(self.random.randint(0, 9))
            new = self.hashes(life.tokens)[before:]
            self.cache.extend(life.request, life.tokens[-1:], block_hashes=new)

    def end(self) -> None:
        """It is preempted or done while its steps may be in flight."""
        life = self.any_of(started=True)
        if life is None:
            return
        life.ended_tables = self.cache.blocks(life.request)
        self.lives.remove(life)
        if self.random.random() < 0.5:
            self.cache.preempt([life.request])
        else:
            self.cache.release([life.request])
        self.ended.append(life)

    def hold(self) -> None:
        """Blocks get a reference of nobody's table, as in a quarantine, or lose it."""
        life = self.any_of(started=True)
        if self.held and self.random.random() < 0.3:
            self.cache.pool.free(self.held)
            self.held = []
        elif life is not None:
            blocks = [b for table in self.cache.blocks(life.request) for b in table if b]
            held = self.random.sample(blocks, min(len(blocks), 3))
            self.cache.pool.hold(held)
            self.held += held

    # ---- what is asked ---------------------------------------------------------------------

    def runs(self) -> list[Run]:
        runs = [life.as_run() for life in (*self.lives, *self.ended)]
        reused = {b for life in self.lives for t in self.cache.blocks(life.request) for b in t}
        for at, run in enumerate(runs):
            if run.ended_tables is not None and self.random.random() < 0.7:
                tables = [
                    [BlockId(0) if block in reused else block for block in table]
                    for table in run.ended_tables
                ]
                runs[at] = run._replace(ended_tables=tables)
        return runs

    def with_former(self, runs: list[Run]) -> tuple[list[Run], list[BlockId]]:
        """Let some of what runs have read be what blocks held before they changed hands."""
        former: list[BlockId] = []

        def content(block: BlockId) -> BlockId:
            if not block or self.random.random() < 0.7:
                return block
            same = [at for at, other in enumerate(former) if other == block]
            if not same or self.random.random() < 0.3:
                former.append(block)
                return BlockId(self.config.num_blocks + len(former) - 1)
            return BlockId(self.config.num_blocks + self.random.choice(same))

        def past(run: Run) -> Run:
            gone = [each._replace(block_id=content(each.block_id)) for each in run.given_back]
            tables = run.ended_tables and [[content(b) for b in t] for t in run.ended_tables]
            return run._replace(given_back=gone, ended_tables=tables)

        return [past(run) for run in runs], former

    def ended_again(self, runs: list[Run]) -> list[Run]:
        """Let some requests go on of which an earlier run has ended."""
        here = [run for run in runs if not run.has_ended]
        if not here or self.random.random() < 0.5:
            return runs
        again = self.random.choice(here)
        return [*runs, again._replace(ended_tables=self.cache.blocks(again.request))]

    def known_hashes(self) -> dict[int, list[bytes]]:
        """Those that the cache knows: a request that was released has none."""
        known = {}
        for life in (*self.lives, *self.ended):
            try:
                self.cache.num_computed_tokens(life.request)
            except UnknownError:
                continue
            known[life.request] = self.hashes(life.tokens)
        return known

    def some_blocks(self, runs: Sequence[Run]) -> list[int]:
        """Mostly loaded blocks, or any of tables; some twice, some that are none."""
        loaded = [block for run in runs for block in self.loaded_blocks(run)]
        if loaded and self.random.random() < 0.6:
            return self.random.choices(loaded, k=self.random.choice((1, 1, 2, 5)))
        tables = [
            table
            for run in runs
            for table in (
                self.cache.blocks(run.request) if run.ended_tables is None else run.ended_tables
            )
        ]
        blocks = [int(block) for table in tables for block in table]
        blocks += [gone.block_id for run in runs for gone in run.given_back]
        blocks += [0, 3, self.config.num_blocks, -1, 2**40]
        if self.random.random() < 0.05:
            return blocks
        return self.random.choices(blocks, k=self.random.choice((0, 1, 1, 2, 5)))

    def loaded_blocks(self, run: Run) -> list[int]:
        tokens = range(run.num_local_tokens, run.num_local_tokens + run.num_loaded_tokens)
        tables = self.cache.blocks(run.request) if run.ended_tables is None else run.ended_tables
        return [
            table[token // spec.block_size]
            for spec, table in zip(self.groups, tables, strict=True)
            for token in tokens
            if token // spec.block_size < len(table)
        ]

    def failures(self, runs: Sequence[Run]) -> Failures:
        forms = self.random.choice((("b",), ("p",), ("g",), ("r",), ("c",), tuple("bpgrc")))
        requests = [*(run.request for run in runs), 99, -1]
        places: dict[int, dict[int, list[int]]] = {}
        for _ in range(self.random.choice((1, 2, 6)) if "p" in forms else 0):
            request = self.random.choice(requests)
            group = self.random.randint(-1 if self.random.random() < 0.1 else 0, len(self.groups))
            position = self.random.randint(-1 if self.random.random() < 0.1 else 0, 8)
            own = places.setdefault(request, {}).setdefault(group, [])
            own += [position] * self.random.choice((1, 1, 2))
        pairs = [
            GroupBlock(self.random.randint(0, len(self.groups)), BlockId(block))
            for block in (self.some_blocks(runs) if "g" in forms else ())
        ]
        return Failures(
            places=places,
            group_blocks=pairs,
            blocks=[BlockId(b) for b in self.some_blocks(runs)] if "b" in forms else (),
            requests=self.random.choices(requests, k=2) if "r" in forms else (),
            contents=self.some_contents(runs) if "c" in forms else (),
        )

    def some_contents(self, runs: Sequence[Run]) -> list[GroupBlock]:
        gone = [GroupBlock(g.group, g.block_id) for run in runs for g in run.given_back]
        most = self.config.num_blocks + 3
        anything = GroupBlock(self.random.randint(0, 2), BlockId(self.random.randint(0, most)))
        return self.random.choices([*gone, anything], k=2)


def with_room(config: CacheConfig) -> CacheConfig:
    """Most pools have room for several requests, who find what others have computed."""
    return replace(config, num_blocks=max(config.num_blocks, 60), caching=True, watermark=0.0)


WORLDS = st.builds(World, st.one_of(CONFIGS, *[CONFIGS.map(with_room)] * 3), st.integers(0, 2**32))
LIVES = st.integers(10, 60)


@settings(max_examples=250)
@given(world=WORLDS, num_steps=LIVES)
def test_the_answer_is_that_of_the_naive_model(world: World, num_steps: int) -> None:
    world.live(num_steps)
    runs, former = world.with_former(world.ended_again(world.runs()))
    snapshot = recovery_model.snapshot_of(world.cache, runs, world.known_hashes())
    ask = partial(assess, former=former)
    for _ in range(3):
        failures = world.failures(runs)
        busy = [BlockId(block) for block in world.some_blocks(runs) if block >= 0]
        if world.random.random() < 0.7:
            busy = []
        expected = recovery_model.assess(snapshot, runs, failures, busy=busy, former=former)
        live = ask(world.cache, runs, failures, busy=busy)
        assert live == expected
        assert ask(snapshot, runs, failures, busy=busy) == expected
        assert ask(snapshot_of(world.cache, runs), runs, failures, busy=busy) == expected
        check_refusals(ask, (world.cache, snapshot), runs, failures)
        check_orders(world, ask, runs, failures)


def check_refusals(
    ask: Callable[..., Assessment],
    sources: tuple[CacheManager, Snapshot],
    runs: Sequence[Run],
    failures: Failures,
) -> None:
    """To tell what was refused changes no answer."""
    live, copied = (ask(source, runs, failures, max_refusals=9) for source in sources)
    assert live == copied
    quiet = [replace_refused(verdict) for verdict in live.verdicts]
    assert quiet == [replace_refused(v) for v in ask(sources[0], runs, failures).verdicts]
    for verdict in live.verdicts:
        assert all(refusal.boundary > verdict.resume for refusal in verdict.refused)


def replace_refused(verdict: object) -> object:
    return verdict._replace(refused=())  # type: ignore[attr-defined]


def check_orders(
    world: World, ask: Callable[..., Assessment], runs: list[Run], failures: Failures
) -> None:
    """Neither the order of runs nor that of reports matters, nor in how many pieces they come."""
    shuffled = world.random.sample(runs, len(runs))
    pieces = [
        replace(failures, places={}, blocks=list(failures.blocks)[::-1]),
        replace(failures, blocks=(), group_blocks=(), requests=()),
        replace(failures, places={}, blocks=(), requests=()),
    ]
    union = Failures.union(world.random.sample(pieces, len(pieces)))
    assert ask(world.cache, shuffled, union, busy=()) == ask(world.cache, runs, failures, busy=())


@settings(max_examples=100)
@given(world=WORLDS, num_steps=LIVES)
def test_a_last_token_can_be_computed_again_only_if_all_that_it_reads_is_held(
    world: World, num_steps: int
) -> None:
    world.live(num_steps)
    for life in world.lives:
        if life.is_started and life.num_processed >= len(life.tokens):
            last, tables = len(life.tokens) - 1, world.cache.blocks(life.request)
            assert can_compute(world.groups, tables, last) == holds(world.groups, tables, last)


def holds(groups: Sequence[GroupSpec], tables: list[list[BlockId]], token: int) -> bool:
    """Token for token: what is read, and from there on what is written."""
    return all(
        spec.kind is not SpecKind.MAMBA
        and all(table[token // spec.block_size :])
        and all(
            read // spec.block_size < len(table) and table[read // spec.block_size]
            for read in range(recovery_model.first_read(spec, token), token)
        )
        for spec, table in zip(groups, tables, strict=True)
    )


FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
CONFIG = CacheConfig(topology=Topology(groups=(FULL,)), num_blocks=9, hash_seed="0")
RUN = Run(
    request=0,
    num_tokens=12,
    num_prompt_tokens=12,
    num_known_tokens=12,
    num_local_tokens=0,
    num_loaded_tokens=8,
    num_processed_tokens=8,
    num_computed_tokens=12,
)


def test_a_run_that_goes_on_must_be_known() -> None:
    with pytest.raises(UnknownError, match="request 0"):
        assess(CacheManager(CONFIG), [RUN], Failures())


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([RUN._replace(ended_tables=[])], "has 0 tables for 1 groups"),
        ([RUN._replace(ended_tables=[[BlockId(9)]])], "block 9 does not exist"),
        ([RUN._replace(ended_tables=[[BlockId(-1)]])], "does not exist"),
        ([RUN._replace(ended_tables=[[]], num_tokens=-1)], "num_tokens is -1"),
        (
            [RUN._replace(ended_tables=[[]], given_back=[GivenBack(1, 0, BlockId(1))])],
            "a block of group 1 was given back",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused(runs: list[Run], text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        assess(CacheManager(CONFIG), runs, Failures())


def test_of_a_request_one_run_goes_on() -> None:
    cache = CacheManager(CONFIG)
    run = RUN._replace(request=cache.add(range(12)))
    cache.allocate([Need(request=run.request, num_new_tokens=12)])
    with pytest.raises(InvalidValueError, match="request 0 is given twice"):
        assess(cache, [run, run], Failures())
    assess(cache, [run, *[run._replace(ended_tables=[[]])] * 2], Failures())


def test_what_is_no_block_and_no_place_is_counted_once_by_its_reason() -> None:
    run = RUN._replace(ended_tables=[[BlockId(1), BlockId(2), BlockId(3)]])
    failures = Failures(
        places={0: {0: [0, 2, 9, 9], 7: [0]}, 5: {0: [1]}},
        group_blocks=[GroupBlock(0, BlockId(2)), GroupBlock(3, BlockId(2))],
        blocks=[BlockId(0), BlockId(0), BlockId(3), BlockId(99)],
        requests=[5, 5],
    )
    found = assess(CacheManager(CONFIG), [run], failures)
    assert found.tainted == (1, 2, 3)
    assert found.verdicts == ()
    assert found.ignored == {
        Ignored.NULL_BLOCK: 1,
        Ignored.UNKNOWN_REQUEST: 2,
        Ignored.OUT_OF_RANGE: 4,
        Ignored.NOT_LOADED: 2,
    }
