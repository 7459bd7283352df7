"""The engine's own tiers: an `OffloadManager`, its ranks, and what is checked of them."""

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from kvbraid.cache import CacheManager
from kvbraid.events.model import BlockStored, Event
from kvbraid.ids import BlockId
from kvbraid.loads import Load, LoadReport, Record
from kvbraid.scheduler import Step
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import OffloadManager
from kvbraid.transfer.tiered_loads import TieredLoads

from tests.ghost.checks import Announced, BadOutcomeError, Findable
from tests.ghost.device import Device
from tests.ghost.faults import Tally
from tests.ghost.landing import EngineRanks
from tests.ghost.ranks import Ranks
from tests.ghost.real.ranks import RealRanks
from tests.ghost.setting import Setting
from tests.ghost.tiers import REMOTE


class Offload:
    """All of it, or nothing if the setting has no own tiers. Over a folder, ranks are real."""

    def __init__(
        self,
        setting: Setting,
        cache: CacheManager,
        device: Device,
        random: Random,
        folder: Path | None = None,
    ) -> None:
        self.manager: OffloadManager | None = None
        self.loads: TieredLoads | None = None
        own, num_ranks = setting.own, setting.options.num_ranks
        names = [name for name, _ in own.tiers] if own else []
        share = own.fault_share if own else 0.0
        self.ranks: EngineRanks = Ranks(device, random, num_ranks, names, share)
        if own and folder:
            self.ranks = RealRanks(
                device, random, num_ranks, names, share, host_slots=own.host_slots, folder=folder
            )
        self.publish: Callable[[Sequence[Event]], object] = lambda _: None
        self._begun: dict[int, Load] = {}
        self._executed = -1
        self._right: dict[tuple[str, BlockKey], list[bytes | None]] = {}
        self._announced = Announced()
        self._compared: dict[str, dict[BlockKey, BlockId]] = {}
        if own:
            self.manager = OffloadManager(
                cache,
                host_slots=own.host_slots,
                tiers=own.tiers,
                options=own.options,
                num_ranks=num_ranks,
            )
            self.loads = TieredLoads(self.manager, setting.alignment)

    def count(self, tally: Tally) -> None:
        """Add what was injected, and what was moved."""
        self.ranks.count(tally)

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way, or a block waits for one."""
        return self.ranks.is_busy or bool(self.manager and self.manager.num_pending)

    @property
    def held_blocks(self) -> list[BlockId]:
        return self.manager.held_blocks if self.manager else []

    def tick(self, tick: int) -> None:
        self.ranks.tick = tick

    def scheduled(self, step: Step | None, num_steps: int) -> None:
        """Learn what a step begins; what may run beside it begins when the steps before it ran."""
        if not self.manager or not self.loads:
            return
        if step is None:
            self.loads.scheduled(None)
        else:
            own = [load for load in step.loads if load.tier != REMOTE]
            self._begun.update((load.number, load) for load in own)
            self.loads.scheduled(step.number, own, step.work.kept_states)
        self.ranks.give(self.manager.take_jobs(), num_steps - (step is not None))
        self.ranks.begin(self._executed + 1)

    def executed(self, step: int) -> None:
        """Let begin what waits for this step."""
        self._executed = step
        self.ranks.begin(step + 1)
        if self.manager:
            self.manager.step_ended(step)

    def lose_host(self) -> None:
        """Let host memory lose all that it has: only the tiers below still have it."""
        if self.manager:
            for key in self.manager.contents()["host"]:
                self.manager.drop(Record("host", key.to_bytes()))

    def advance(self) -> None:
        """Let ranks do what is due."""
        self.ranks.advance()

    def take_reports(self) -> list[LoadReport]:
        """Pass on what ranks have answered; return what it means for loads."""
        if not self.manager or not self.loads:
            return []
        for rank, result in self.ranks.take_results():
            self.manager.finished(rank, [result])
        return self.loads.take_reports()

    def failed(self, reports: Sequence[LoadReport]) -> list[Load]:
        """Return the loads that these reports say have failed, or have read garbage."""
        failed = []
        for report in reports:
            named = {*report.ended, *report.given_up}
            if report.given_up or (named and report.failures):
                failed += [self._begun[number] for number in sorted(named)]
            elif report.failures:
                mine = [
                    n for n, load in self._begun.items() if load.request in report.failures.places
                ]
                failed.append(self._begun[max(mine)])
        return failed

    def check(self, findable: Findable) -> None:
        """Check the manager, what its tiers have, and what events say that they have."""
        if not self.manager:
            return
        self.manager.check_integrity()
        self.ranks.check()
        events = self.manager.take_events()
        self.publish(events)
        for event in events:
            step = 1 if isinstance(event, BlockStored) else -1
            for block_hash in event.block_hashes:
                self._announced.count((event.medium, event.group_idx, block_hash), step)
        tiers = self.manager.contents()
        if events or tiers != self._compared:
            self._compared = tiers
            self._check_announced(tiers)
        for tier, keys in tiers.items():
            for key, slot in keys.items():
                contents = self.ranks.contents(tier, key, slot)
                if self._right.get((tier, key)) != contents:
                    self._right[tier, key] = contents
                    self._check_copies(findable, tier, key, contents)

    def _check_announced(self, tiers: dict[str, dict[BlockKey, BlockId]]) -> None:
        found = Announced()
        for tier, keys in tiers.items():
            medium = "STORAGE" if tier in self.ranks.tiers else "CPU"
            for key in keys:
                found.count((medium, key.group, int.from_bytes(key.block_hash[-8:], "big")), 1)
        if found != self._announced:
            raise BadOutcomeError(f"events say {self._announced}, but tiers have {found}")

    def _check_copies(
        self, findable: Findable, tier: str, key: BlockKey, contents: Sequence[bytes | None]
    ) -> None:
        for content in contents:
            values = array("q")
            values.frombytes(content or b"")
            if not findable.is_right(key, values):
                self._right.pop((tier, key), None)

    def check_idle(self) -> None:
        """Check that nothing is pinned any more."""
        if self.manager and (self.manager.num_pinned or self.manager.num_pending):
            raise BadOutcomeError(f"{self.manager.num_pinned} slots and blocks are pinned")
