"""One small world: the shipped scheduler and cache, a ghost device, and all that can happen.

The device runs a step when it is scheduled, and an asynchronous load lands when its last rank
reports its end: the earliest and the latest that they may. In between, its blocks are torn. A
block that is free and that no hash finds holds nothing, so whoever reads it is found out.

Every event leads to a new world; the old one stays as it is. Whatever a rank or a tier may answer
while a step is scheduled is tried, one answer after the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvbraid.cache import CacheManager
from kvbraid.scheduler import Scheduler

from tests.ghost.device import Device
from tests.ghost.world import events, promises
from tests.ghost.world.parts import Script, Transfer, WorldTiers
from tests.ghost.world.search import Move
from tests.ghost.world.settings import Setting
from tests.ghost.world.state import WorldState


@dataclass(slots=True)
class World(WorldState):
    """A state and what can happen next. The first one is made by `begin`."""

    def moves(self) -> Iterator[Move["World"]]:
        for index in {0, 1} - {client.life for client in self.clients}:
            yield self._try(f"add {index}", events.add, index)
        if len(self.flights) < self.setting.num_steps_in_flight and self._has_work():
            yield from self._every_answer("schedule", events.schedule)
        if self.flights:
            yield self._try("update", events.update)
        for number, transfer in self.transfers.items():
            yield from self._ends_of(number, transfer)
        yield from self._late_reports()
        if self.last is not None and not promises.means_another(self, self.last):
            yield self._try("told twice", events.tell_again, is_calm=False)
        if self.num_troubles < self.setting.num_troubles and not self.is_end():
            yield from self._troubles()

    def _has_work(self) -> bool:
        return any(client.finish is None for client in self.clients)

    def _ends_of(self, number: int, transfer: Transfer) -> Iterator[Move["World"]]:
        for rank in transfer.pending:
            end = f"load {number}, rank {rank}"
            yield self._try(f"{end} ends", events.end, number, rank)
            if transfer.spoilt or self.num_troubles == self.setting.num_troubles:
                continue
            for spoilt, name in events.subsets(transfer.load.targets):
                for is_told, how in ((True, "fails"), (False, "fails silently")):
                    words, so = f"{end} {how}: {name}", (number, rank, spoilt, is_told)
                    yield self._try(words, events.end, *so, is_calm=False)
            yield self._try(f"{end} gives up", events.give_up, number, rank, is_calm=False)

    def _late_reports(self) -> Iterator[Move["World"]]:
        early = {load.number for flight in self.flights for load, _ in flight.loaded}
        for number, fault in self.faults.items():
            is_due = not fault.is_reported and fault.load.number not in early
            if is_due and (self.setting.late_steps or not promises.means_another(self, fault)):
                yield self._try(f"fault {number} is told", events.tell, number, is_calm=False)

    def _troubles(self) -> Iterator[Move["World"]]:
        for client in self.clients:
            name, number = client.life, client.number
            if client.finish is None:
                yield self._try(f"abort {name}", events.abort, number, is_calm=False)
            if number in self.scheduler.inspect().running:
                yield self._try(f"preempt {name}", events.preempt, number, is_calm=False)
        if self.cache.debug.cached():
            yield self._try("evict", events.evict, is_calm=False)

    def _try(
        self, name: str, event: Callable[..., object], *what: object, is_calm: bool = True
    ) -> Move["World"]:
        after = self.copy()
        try:
            event(after, *what)
            promises.check(after)
        except Exception as error:  # noqa: BLE001 - whatever is refused is a finding
            return Move(name, is_calm, f"{type(error).__name__}: {error}")
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            return Move(name, is_calm, f"panic: {error}")
        return Move(name, is_calm, after)

    def _every_answer(
        self, name: str, event: Callable[["World", Script], object]
    ) -> Iterator[Move["World"]]:
        script: Script | None = Script()
        while script is not None:
            played = script
            move = self._try(name, event, played)
            is_calm = not any("fails" in word for word in played.said)
            yield Move(" ".join([name, *played.said]), is_calm, move.outcome)
            script = played.next()


def begin(setting: Setting) -> World:
    """The world before anything has happened."""
    config = setting.config()
    blocks, tiers = CacheManager(config), WorldTiers()
    scheduler = Scheduler(blocks, setting.options, tiers)
    device = Device(config.topology.groups, config.num_blocks)
    return World(setting, blocks, tiers, scheduler, device)
