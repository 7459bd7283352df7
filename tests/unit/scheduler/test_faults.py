"""Random lives, without loads and with loads that fail in every form, any time, on any rank."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.loads import Cause, Failures, GroupBlock, Record
from kvbraid.recovery import Policy
from kvbraid.scheduler import Finish, Load, LoadReport, Offer, Query
from kvbraid.spec import GroupSpec

from tests.unit.cache.caches import chunked, full, mamba, window
from tests.unit.scheduler.engines import Engine, prompts, sampled

MIXES = [
    (full(4),),
    (full(4), window(6, 4)),
    (full(8), window(3, 4), chunked(12, 4)),
    (full(4), mamba(4)),
    (window(5, 4),),
    (window(9, 4), window(5, 4)),
]
RANKS = 2


class Faulty:
    """Tiers that offer much, or nothing, and ranks that report when they like."""

    def __init__(self, engine: Engine, random: Random, *, offers: bool) -> None:
        self.engine, self.random = engine, random
        self.open: dict[tuple[int, int], Load] = {}
        self.injected = 0
        if offers:
            engine.tiers.answer = self.offer

    def offer(self, query: Query) -> Offer | None:
        random, unit = self.random, self.engine.scheduler.inspect().rules.alignment
        is_async = random.random() < 0.5
        most = (len(query.tokens) - 1 - query.num_hit_tokens) // unit
        if most < 1 or random.random() < 0.3 or "host" in query.refused:
            return None
        count = random.randint(1, most) * unit
        if is_async and random.random() < 0.3:
            count = len(query.tokens) - query.num_hit_tokens
        record = Record("host", bytes([query.request % 256]))
        return Offer(num_tokens=count, tier="host", is_async=is_async, records=(record,))

    def begin(self, loads: tuple[Load, ...]) -> None:
        self.open.update({(load.number, r): load for load in loads for r in range(RANKS)})

    def reports(
        self, due: tuple[Load, ...] = (), *, all_of_them: bool = False
    ) -> list[LoadReport]:
        """Some ranks end or give up some loads; about those that are due, all of them."""
        made = []
        numbers = {load.number for load in due}
        for (number, rank), load in list(self.open.items()):
            is_due = number in numbers or all_of_them
            if not is_due and self.random.random() < 0.6:
                continue
            fails, gives_up = self.random.random() < 0.2, self.random.random() < 0.1
            failures = self.failures(load) if fails else Failures()
            self.injected += fails or gives_up
            if gives_up and not all_of_them:
                made.append(LoadReport(rank=rank, given_up=[number], failures=failures))
            else:
                del self.open[number, rank]
                made.append(LoadReport(rank=rank, ended=[number], failures=failures))
        self.random.shuffle(made)
        return made

    def failures(self, load: Load) -> Failures:
        some = self.random.sample(load.targets, min(len(load.targets), self.random.randint(1, 3)))
        causes = {record: self.random.choice(list(Cause)) for record in load.records}
        form = self.random.randrange(4)
        if form == 0:
            return Failures(requests=[load.request], causes=causes)
        if form == 1:
            return Failures(blocks=[target.block_id for target in some], causes=causes)
        if form == 2:
            pairs = [GroupBlock(target.group, target.block_id) for target in some]
            return Failures(group_blocks=pairs, causes=causes)
        places: dict[int, list[int]] = {}
        for target in some:
            places.setdefault(target.group, []).append(target.position)
        return Failures(places={load.request: places}, causes=causes)


@pytest.mark.parametrize("fails", [False, True], ids=["no loads", "failing loads"])
@given(
    seed=st.integers(0, 2**32),
    groups=st.sampled_from(MIXES),
    num_blocks=st.sampled_from((14, 20, 28, 60)),
    steps=st.sampled_from((1, 2)),
    drafts=st.sampled_from((0, 0, 2)),
    findable=st.sampled_from(("computed", "scheduled")),
    policy=st.sampled_from(Policy),
)
def test_whatever_fails_all_requests_end_and_all_blocks_come_back(
    seed: int,
    groups: tuple[GroupSpec, ...],
    num_blocks: int,
    steps: int,
    drafts: int,
    findable: str,
    policy: Policy,
    *,
    fails: bool,
) -> None:
    random = Random(seed)
    has_states = any(group.kind.value == "mamba" for group in groups)
    engine = Engine(
        *groups,
        cache={"num_blocks": num_blocks},
        max_step_tokens=random.choice((5, 7, 16, 64)),
        max_running=random.choice((2, 5)),
        max_steps_in_flight=steps,
        num_lookahead_tokens=0 if has_states else drafts,
        findable=findable,
        policy=policy,
        num_ranks=RANKS,
        cooldown_steps=5,
    )
    faulty = Faulty(engine, random, offers=fails)
    wanted: dict[int, tuple[int, int]] = {}
    queue = prompts(random, 8, 12)
    for _ in range(3_000):
        if queue and random.random() < 0.3:
            prompt, count = queue.pop(), random.choice((0, 1, 2, 7))
            wanted[engine.add(prompt, count)] = (len(prompt), count)
        alive = [r for r in wanted if engine.num_tokens(r)]
        if alive and random.random() < 0.02:
            engine.abort(random.choice(alive))
        if len(engine.steps) < steps:
            step = engine.schedule()
            faulty.begin(step.loads if step else ())
        if random.random() < 0.3 or not engine.steps:
            engine.report(faulty.reports())
        if engine.steps and (len(engine.steps) == steps or random.random() < 0.5):
            due = tuple(load for load in engine.steps[0].loads if not load.is_async)
            engine.update(faulty.reports(due), accepted=lambda: random.randint(0, 2))
        if not queue and not engine.scheduler.num_requests and not engine.steps:
            break
    else:
        raise AssertionError("it does not end")
    engine.report(faulty.reports(all_of_them=True))
    assert engine.cache.pool.num_held == 0
    assert engine.cache.pool.num_free == num_blocks - 1
    for request, (length, count) in wanted.items():
        outputs, tokens = engine.said[request], engine.tokens(request)
        assert [bool(output.finish) for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert tokens == [sampled(length + n) for n in range(len(tokens))]
        end = outputs[-1]
        assert end.finish is not Finish.LENGTH or len(tokens) == count
        assert end.error in {None, "out_of_blocks", *(("load_failed", "tainted_output") * fails)}
        if not fails:
            is_too_large = not engine.cache.can_ever_fit(length + count)
            assert is_too_large if end.error else end.finish in {Finish.LENGTH, Finish.ABORTED}
        told = [output.prompt for output in outputs if output.prompt]
        assert all(sum(counts) == length for counts in told)
        assert len(told) <= 1
