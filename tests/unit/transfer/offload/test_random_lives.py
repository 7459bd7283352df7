"""Random lives of a manager: whatever ranks and tiers do, nothing is wrong or left pinned."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvbraid.cache import Need
from kvbraid.ids import BlockId
from kvbraid.loads import Record, Target
from kvbraid.recovery.ledger.loading import targets_of
from kvbraid.spec import Topology
from kvbraid.transfer.jobs import Job, JobResult
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import Found, OffloadOptions
from kvbraid.transfer.status import Status

from tests.unit.transfer.offload.engine import (
    FULL,
    HYBRID,
    PARTIAL,
    STATE,
    WINDOW,
    Engine,
)

TOPOLOGIES = (
    HYBRID,
    Topology(groups=(FULL,)),
    Topology(groups=(FULL, STATE)),
    PARTIAL,
    Topology(groups=(WINDOW,)),
)
PROMPTS = (tuple(range(9)), tuple(range(22)), (*range(13), *range(40, 50)), tuple(range(60, 77)))


class Life(RuleBasedStateMachine):
    """Blocks hold their keys, so what a tier or a loaded block holds is known to be right.

    `loads` are under way: their requests keep their blocks until every rank has ended them.
    """

    @initialize(
        topology=st.sampled_from(TOPOLOGIES),
        host_slots=st.integers(1, 30),
        tiers=st.sampled_from([(), (("disk", 6),), (("disk", 40), ("far", 3))]),
        num_ranks=st.integers(1, 2),
        limits=st.tuples(
            st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.integers(1, 5)
        ),
        deadline=st.sampled_from([0, 2, 100]),
    )
    def begin(
        self,
        topology: Topology,
        host_slots: int,
        tiers: Sequence[tuple[str, int]],
        num_ranks: int,
        limits: tuple[int, int, int, int],
        deadline: float,
    ) -> None:
        stores, writes, promotions, items = limits
        options = OffloadOptions(
            max_pending_stores=stores,
            max_pending_writes=writes,
            max_promotions=promotions,
            max_job_items=items,
            promote_deadline=deadline,
            load_deadline=deadline,
            rest=2,
        )
        self.engine = Engine(
            topology=topology,
            host_slots=host_slots,
            tiers=tiers,
            num_ranks=num_ranks,
            options=options,
            num_blocks=80,
        )
        self.owed: list[tuple[int, Job]] = []  # Answers, by rank.
        self.hung: list[tuple[int, JobResult]] = []
        self.loads: dict[int, tuple[Found, list[Target], set[int]]] = {}
        self.requests: list[int] = []

    @precondition(lambda self: len(self.requests) < 3)
    @rule(tokens=st.sampled_from(PROMPTS))
    def compute(self, tokens: tuple[int, ...]) -> None:
        self.requests.append(self.engine.compute(tokens, to_end=False))
        self._collect()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        self.requests.remove(request)
        self.engine.release(request)

    @rule()
    def evict(self) -> None:
        self.engine.evict()

    @precondition(lambda self: len(self.loads) < 2)
    @rule(tokens=st.sampled_from(PROMPTS), may_wait=st.booleans(), takes=st.booleans())
    def look_up(self, tokens: tuple[int, ...], may_wait: bool, takes: bool) -> None:
        engine = self.engine
        found = engine.look_up(tokens, may_wait=may_wait)
        engine.check()
        if not (takes and isinstance(found, Found)):
            engine.cache.release([engine.request])
            if takes:
                engine.manager.forget_request(engine.request)
            return
        need = Need(
            request=found.request,
            num_new_tokens=0,
            match=found.match,
            num_external_tokens=found.num_external_tokens,
            delay_commit=True,
        )
        engine.cache.start_step()
        if not engine.cache.allocate([need]).num_fit:
            engine.cache.release([found.request])
            return
        tables, start = engine.cache.blocks(found.request), found.match.num_tokens
        targets = list(targets_of(engine.topology.groups, tables, start, found.num_tokens))
        engine.manager.begin_load(engine.num_loads, engine.num_steps, targets, found.request)
        ranks = set(range(engine.num_ranks))
        self.loads[engine.num_loads] = (found, targets, ranks)
        engine.num_loads += 1
        engine.step(to_end=False)
        self._collect()

    @rule()
    def step(self) -> None:
        self.engine.step(to_end=False)
        self._collect()

    def _collect(self) -> None:
        for job in self.engine.jobs:
            self.owed += [(rank, job) for rank in range(self.engine.num_ranks)]
        self.engine.jobs.clear()

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        rank, job = self.owed.pop(data.draw(st.integers(0, len(self.owed) - 1)))
        bad = data.draw(st.sampled_from([Status.OK, Status.OK, *Status]))
        places = data.draw(st.sets(st.integers(0, len(job.items) - 1)))
        worker, statuses = self.engine.workers[rank], []
        for place, item in enumerate(job.items):
            status = bad if place in places else Status.OK
            statuses.append(worker.move(job, item) if status is Status.OK else status)
        hangs = any(status is Status.TIMEOUT for status in statuses)
        result = JobResult(number=job.number, statuses=tuple(statuses), is_over=not hangs)
        if hangs:
            over = JobResult(number=job.number, statuses=tuple(statuses))
            self.hung.append((rank, over))
        self.engine.manager.finished(rank, [result])
        self._take_reports()

    @precondition(lambda self: self.hung)
    @rule()
    def end_hung(self) -> None:
        rank, result = self.hung.pop(0)
        self.engine.manager.finished(rank, [result])
        self._take_reports()

    def _take_reports(self) -> None:
        """Check what was loaded; a request gives its blocks back when all ranks have ended."""
        for report in self.engine.manager.take_reports():
            for number in report.ended:
                found, targets, ranks = self.loads[number]
                ranks.remove(report.rank)
                bad = report.failures.places.get(found.request, {})
                for target in targets:
                    if target.position not in bad.get(target.group, ()):
                        self._check_loaded(report.rank, found, target)
                if not ranks:
                    del self.loads[number]
                    self.engine.release(found.request)

    def _check_loaded(self, rank: int, found: Found, target: Target) -> None:
        """A state may be one that ends inside its block: where the load ends."""
        size = self.engine.topology.groups[target.group].block_size
        end = min((target.position + 1) * size, found.num_tokens)
        hashes = self.engine.cache.tiers.block_hashes(found.request)
        key = BlockKey(hashes[end // FULL.block_size - 1], target.group)
        assert self.engine.workers[rank].device[target.block_id] == self.engine.content(key, rank)

    @rule(data=st.data())
    def forget_blocks(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sets(st.integers(1, self.engine.num_blocks - 1), max_size=4))
        self.engine.manager.forget_blocks([BlockId(block) for block in blocks])
        self._take_reports()

    @rule(data=st.data())
    def say_something_of_a_record(self, data: st.DataObject) -> None:
        engine = self.engine
        contents = engine.manager.contents()
        records = [Record(tier, key.to_bytes()) for tier in contents for key in contents[tier]]
        if records:
            record = data.draw(st.sampled_from(records))
            how = data.draw(st.sampled_from(["drop", "back_off", "vanished"]))
            if how != "vanished":
                getattr(engine.manager, how)(record)
            elif record.tier != engine.options.host_name:
                key = next(k for k in contents[record.tier] if k.to_bytes() == record.key)
                engine.manager.vanished(record.tier, [engine.manager._tiers.record_key(key)])
            self._take_reports()

    @rule()
    def reset(self) -> None:
        self.engine.reset()
        self._take_reports()

    @precondition(lambda self: self.engine.tiers)
    @rule()
    def find_records(self) -> None:
        for rank, worker in enumerate(self.engine.workers):
            for name, records in worker.records.items():
                self.engine.manager.opened(name, list(records), rank)

    @invariant()
    def is_consistent(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        engine.manager.close()
        for _ in range(400):
            if not (self.owed or self.hung or engine.manager.num_pending):
                break
            for rank, job in self.owed:
                worker = engine.workers[rank]
                statuses = tuple(worker.move(job, item) for item in job.items)
                engine.manager.finished(rank, [JobResult(number=job.number, statuses=statuses)])
            self.owed.clear()
            while self.hung:
                self.end_hung()
            self._take_reports()
            self.step()
        assert not engine.manager.num_pending, engine.manager.counts.num_pending
        assert not self.loads
        for request in self.requests:
            engine.release(request)
        engine.manager.end_schedule(None)
        engine.check()
        engine.check_idle()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=25)
