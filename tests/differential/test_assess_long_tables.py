"""Long tables, natively and by the naive model: as far as blocks follow each other or tables begin
alike, the native side reads many entries as one.

The tables are a `Snapshot` that no cache has made: their blocks go up, go down or lie anywhere, a
window has null blocks at its start or in its middle, and requests share beginnings of any length.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.recovery import Run, RunTables, Snapshot, assess
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.reference import recovery_model

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=2)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=2, window=80)
MIXES = ((FULL,), (FULL, FULL), (FULL, WINDOW), (WINDOW,))
NUM_BLOCKS = 2_000


class Tables:
    """Tables of up to six requests of up to 150 positions; each may begin as the one before it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.groups = self.random.choice(MIXES)
        self.unused = [BlockId(block) for block in range(1, NUM_BLOCKS)]
        order = self.random.choice(("up", "down", "any"))
        if order == "any":
            self.random.shuffle(self.unused)
        elif order == "up":
            self.unused.reverse()
        self.tables: dict[int, RunTables] = {}
        self.runs: list[Run] = []
        before = [list[BlockId]() for _ in self.groups]
        for request in range(self.random.choice((3, 6))):
            before = self.add(request, before)

    def add(self, request: int, before: list[list[BlockId]]) -> list[list[BlockId]]:
        length = self.random.randint(1, 150)
        common = self.random.choice((0, 150, self.random.randint(0, 150)))
        tables = [table[: min(common, length)] for table in before]
        for spec, table in zip(self.groups, tables, strict=True):
            table += [self.unused.pop() for _ in range(length - len(table))]
            if spec is WINDOW:
                self.give_back(table)
        self.tables[request] = RunTables(blocks=tables, states=[[] for _ in tables], findable={})
        hit = min(common, length, len(before[0]))
        loaded = self.random.randint(hit, length)
        computed = 2 * self.random.randint(loaded, length)
        self.runs.append(
            Run(
                request=request,
                num_tokens=2 * length + 1,
                num_prompt_tokens=2 * length + 1,
                num_known_tokens=2 * length + 1,
                num_local_tokens=2 * hit,
                num_loaded_tokens=2 * (loaded - hit),
                num_processed_tokens=2 * loaded,
                num_computed_tokens=computed,
            )
        )
        return tables

    def give_back(self, table: list[BlockId]) -> None:
        first = self.random.choice((0, 0, self.random.randrange(len(table))))
        last = self.random.randint(first, len(table))
        table[first:last] = [BlockId(0)] * (last - first)

    def failures(self) -> Failures:
        blocks = sorted({b for own in self.tables.values() for t in own.blocks for b in t})
        return Failures(blocks=self.random.choices(blocks, k=self.random.choice((1, 3, 40))))

    def busy(self) -> list[BlockId]:
        return [BlockId(self.random.randrange(NUM_BLOCKS))] * self.random.choice((0, 0, 1))


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_long_tables_are_judged_as_the_naive_model_judges_them(seed: int) -> None:
    tables = Tables(seed)
    topology = Topology(groups=tables.groups)
    snapshot = Snapshot(topology=topology, num_blocks=NUM_BLOCKS, tables=tables.tables)
    failures, busy = tables.failures(), tables.busy()
    expected = recovery_model.assess(snapshot, tables.runs, failures, busy=busy)
    assert assess(snapshot, tables.runs, failures, busy=busy) == expected
