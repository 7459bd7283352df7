"""All that a small world holds, how it branches, and what of it decides all that follows."""

import marshal
from collections import deque
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Self

from kvbraid.cache import CacheManager
from kvbraid.scheduler import Scheduler

from tests.ghost.device import Device
from tests.ghost.truth import Life
from tests.ghost.world.parts import Client, Fault, Flight, Transfer, WorldTiers
from tests.ghost.world.settings import Setting
from tests.ghost.world.twins import Image, twin


@dataclass(slots=True)
class WorldState:
    """All that there is."""

    setting: Setting
    cache: CacheManager
    tiers: WorldTiers
    scheduler: Scheduler
    device: Device
    clients: list[Client] = field(default_factory=list)
    flights: deque[Flight] = field(default_factory=deque)
    transfers: dict[int, Transfer] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    last: Fault | None = None
    num_loads: int = 0
    num_troubles: int = 0

    def copy(self) -> Self:
        device = Device(self.device.groups, 0)
        device.cells = [list(cell) for cell in self.device.cells]
        device.writes = list(self.device.writes)
        blocks, tiers = self.cache.copy(), WorldTiers()
        known: dict[int, Any] = {id(self.cache): blocks, id(self.tiers): tiers}
        return replace(
            self,
            cache=blocks,
            tiers=tiers,
            scheduler=twin(self.scheduler, known),
            device=device,
            clients=list(self.clients),
            flights=deque(self.flights),
            transfers=dict(self.transfers),
            faults=dict(self.faults),
        )

    def key(self) -> bytes:
        inside = self.scheduler.inspect()
        inside.ledgers.catch_up(inside.running)
        image = Image(inside.num_steps)
        parts: list[Any] = [image.of(inside)]
        for client in self.clients:
            if client.finish is None:
                number = client.number
                parts.append(self.cache._core.progress(number))
                parts.append(image.blocks(self.cache.blocks(number)))
                parts += map(tuple, self.cache.debug.cursors(number))
        parts.append(self._own_image(image))
        for (group, digest), copies in sorted(self.cache.debug.cached().items()):
            authors = [info.author for info in self.cache.pool.describe(copies)]
            parts.append((group, digest, image.blocks(copies), authors))
        parts.append([image.known(block) for block in self.cache.debug.free_queue()])
        work = self.cache.copy().take_work(caller_frees=True)
        parts += [image.blocks(work.copies), image.blocks(work.blocks_to_zero)]
        parts.append(sorted(self.cache.debug.fresh_states()))
        parts.append([self.device.cells[block] for block in image.named()])
        parts.append(sorted(image.loads.items()))
        return blake2b(marshal.dumps(parts, 0), digest_size=16).digest()

    def _own_image(self, image: Image) -> list[Any]:
        taints = [[(r, value) for r, value, _ in f.taints] for f in self.flights]
        return [
            self.clients and [tuple(client) for client in map(_plain, self.clients)],
            taints,
            [[(image.load(load), n) for load, n in f.loaded] for f in self.flights],
            [image.of(each) for each in self.transfers.values()],
            [(number, image.of(fault)) for number, fault in sorted(self.faults.items())],
            image.of(self.last),
            self.num_loads,
            self.num_troubles,
        ]

    def is_end(self) -> bool:
        is_over = sum(client.finish is not None for client in self.clients) == 2
        return is_over and not (self.flights or self.transfers)

    def life_of(self, number: int) -> Life:
        life = next(client.life for client in self.clients if client.number == number)
        return self.setting.lives()[life]


def _plain(client: Client) -> tuple[Any, ...]:
    finish = client.finish and client.finish.value
    return (client.life, client.num_tokens, client.spoilt, client.is_counted, finish)
