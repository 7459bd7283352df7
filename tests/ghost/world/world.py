"""One small world: the shipped scheduler and cache, a ghost device, and all that can happen.

The device runs a step when it is scheduled, and an asynchronous load lands when its last rank
reports its end: the earliest and the latest that they may. In between, its blocks are torn. A
block that is free and that no hash finds holds nothing, so whoever reads it is found out.

Every event leads to a new world; the old one stays as it is. Whatever a rank or a tier may answer
while a step is scheduled is tried, one answer after the other.
"""

import marshal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from kvbraid.cache import CacheManager
from kvbraid.ids import BlockId
from kvbraid.loads import Failures
from kvbraid.recovery import Run
from kvbraid.scheduler import (
    Finish,
    Load,
    LoadReport,
    Offer,
    Output,
    Query,
    Scheduled,
    Scheduler,
    StepResult,
    Target,
)

from tests.ghost.device import TORN, Computation, Device, fault_of, garbage_of
from tests.ghost.truth import Life
from tests.ghost.world.contents import contents_of, digests_of, expected_of, values_of
from tests.ghost.world.parts import Client, Fault, Flight, Script, Transfer, WorldTiers
from tests.ghost.world.search import Move
from tests.ghost.world.settings import BLOCK, Setting
from tests.ghost.world.twins import Image, twin


class WrongError(AssertionError):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class World:
    """All that there is. A new one is made by `begin`."""

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

    # Branching.

    def copy(self) -> "World":
        device = Device(self.device.groups, 0)
        device.cells = [list(cell) for cell in self.device.cells]
        device.writes = list(self.device.writes)
        blocks, tiers = self.cache.copy(), WorldTiers()
        known: dict[int, Any] = {id(self.cache): blocks, id(self.tiers): tiers}
        return World(
            setting=self.setting,
            cache=blocks,
            tiers=tiers,
            scheduler=twin(self.scheduler, known),
            device=device,
            clients=list(self.clients),
            flights=deque(self.flights),
            transfers=dict(self.transfers),
            faults=dict(self.faults),
            last=self.last,
            num_loads=self.num_loads,
            num_troubles=self.num_troubles,
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

    # What can happen.

    def is_end(self) -> bool:
        is_over = sum(client.finish is not None for client in self.clients) == 2
        return is_over and not (self.flights or self.transfers)

    def moves(self) -> Iterator[Move["World"]]:
        for index in {0, 1} - {client.life for client in self.clients}:
            yield self._try(f"add {index}", World.add, index)
        if len(self.flights) < self.setting.num_steps_in_flight and self._has_work():
            yield from self._every_answer("schedule", World.schedule)
        if self.flights:
            yield self._try("update", World.update)
        for number, transfer in self.transfers.items():
            yield from self._ends_of(number, transfer)
        yield from self._late_reports()
        if self.last is not None and not self._means_another(self.last):
            yield self._try("told twice", World.tell_again, is_calm=False)
        if self.num_troubles < self.setting.num_troubles and not self.is_end():
            yield from self._troubles()

    def _has_work(self) -> bool:
        return any(client.finish is None for client in self.clients)

    def _ends_of(self, number: int, transfer: Transfer) -> Iterator[Move["World"]]:
        for rank in transfer.pending:
            end = f"load {number}, rank {rank}"
            yield self._try(f"{end} ends", World.end, number, rank)
            if transfer.spoilt or self.num_troubles == self.setting.num_troubles:
                continue
            for spoilt, name in _subsets(transfer.load.targets):
                for is_told, how in ((True, "fails"), (False, "fails silently")):
                    words, so = f"{end} {how}: {name}", (number, rank, spoilt, is_told)
                    yield self._try(words, World.end, *so, is_calm=False)
            yield self._try(f"{end} gives up", World.give_up, number, rank, is_calm=False)

    def _late_reports(self) -> Iterator[Move["World"]]:
        early = {load.number for flight in self.flights for load, _ in flight.loaded}
        for number, fault in self.faults.items():
            is_due = not fault.is_reported and fault.load.number not in early
            if is_due and (self.setting.late_steps or not self._means_another(fault)):
                yield self._try(f"fault {number} is told", World.tell, number, is_calm=False)

    def _means_another(self, fault: Fault) -> bool:
        """Whether a later load fills such a block of such a group: a report would mean that."""
        named = {(target.group, target.block_id) for target in fault.targets}
        running = self.scheduler.inspect().running.values()
        loads = [request.load for request in running if request.load is not None]
        later = [load for load in loads if load.number > fault.load.number]
        return any((t.group, t.block_id) in named for load in later for t in load.targets)

    def _troubles(self) -> Iterator[Move["World"]]:
        for client in self.clients:
            name, number = client.life, client.number
            if client.finish is None:
                yield self._try(f"abort {name}", World.abort, number, is_calm=False)
            if number in self.scheduler.inspect().running:
                yield self._try(f"preempt {name}", World.preempt, number, is_calm=False)
        if self.cache.debug.cached():
            yield self._try("evict", World.evict, is_calm=False)

    def _try(
        self, name: str, event: Callable[..., object], *what: object, is_calm: bool = True
    ) -> Move["World"]:
        after = self.copy()
        try:
            event(after, *what)
            after.check()
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

    # Events.

    def add(self, index: int) -> None:
        life = self.setting.lives()[index]
        prompt = life.tokens[: life.num_prompt_tokens]
        number = self.scheduler.add(prompt, max_new_tokens=len(life.outputs))
        self.clients.append(Client(number, index))

    def schedule(self, script: Script) -> None:
        offers: list[int] = []
        self.tiers.choose = lambda query: self._offer(query, script, offers)
        step = self.scheduler.schedule()
        if step is None:
            return
        loaded = []
        for load in step.loads:
            self.num_loads += 1
            if load.is_async:
                ranks = tuple(range(self.setting.num_ranks))
                self.transfers[load.number] = Transfer(load, ranks)
                for target in load.targets:
                    self._fill(target, TORN)
            else:
                loaded.append((load, self._land_now(load, script)))
        for block in step.work.blocks_to_zero:
            self.device.zero(block)
        for source, destination in step.work.copies:
            self.device.copy(source, destination)
        taints = tuple(taint for part in step.scheduled if (taint := self._compute(part)))
        self.flights.append(Flight(step, taints, tuple(loaded)))

    def _offer(self, query: Query, script: Script, offers: list[int]) -> Offer | None:
        if self.num_loads + len(offers) >= self.setting.num_loads or query.refused:
            return None
        end, hit = len(query.tokens), query.num_hit_tokens
        ends = list(range(hit + BLOCK, end + self.setting.is_async, BLOCK))
        if self.setting.is_async and end % BLOCK and end > hit:
            ends.append(end)
        choice = script.choose(["(no load)", *(f"(load of {e - hit})" for e in ends)])
        if not choice:
            return None
        offers.append(choice)
        return Offer(
            num_tokens=ends[choice - 1] - hit, tier="tier", is_async=self.setting.is_async
        )

    def _land_now(self, load: Load, script: Script) -> int | None:
        """Land a synchronous load; return the fault."""
        subsets = list(_subsets(load.targets))
        names = ["(lands)"]
        if self.num_troubles < self.setting.num_troubles:
            names += [f"(fails: {name})" for _, name in subsets]
            names += [f"(fails silently: {name})" for _, name in subsets]
        choice = script.choose(names)
        if not choice:
            self._land(load, ())
            return None
        spoilt, _ = subsets[(choice - 1) % len(subsets)]
        self.num_troubles += 1
        number = self._land(load, spoilt)
        return number if choice <= len(subsets) else None

    def _land(self, load: Load, spoilt: Sequence[Target]) -> int | None:
        """Write what a load brings; return the fault."""
        end = load.start + load.num_tokens
        life = self._life(load.request)
        number = None
        if spoilt:
            number = next(n for n in range(99) if n not in self.faults)
            self.faults[number] = Fault(load, tuple(spoilt))
        for target in load.targets:
            if number is not None and target in spoilt:
                self._fill(target, garbage_of(number))
                continue
            values = values_of(self.device, life, target.group, target.position, end)
            cell = self.device.cell(target.block_id, target.group)
            self.device.fill(target.block_id, values + cell[len(values) :])
        return number

    def _fill(self, target: Target, value: int) -> None:
        size = len(self.device.cell(target.block_id, target.group))
        self.device.fill(target.block_id, [value] * size)

    def _compute(self, part: Scheduled) -> tuple[int, int, str] | None:
        life = self._life(part.request)
        work = Computation(
            request=part.request,
            life=life,
            expected=expected_of(self.device, life),
            start=part.start,
            end=part.start + part.num_tokens,
            tables=self.cache.blocks(part.request),
        )
        taint = self.device.run(work)
        self.device._sampled.clear()  # What was handed out is right to go on from.
        return None if taint is None else (part.request, taint.value, taint.where)

    def update(self) -> None:
        flight = self.flights.popleft()
        sampled = {}
        for part in flight.step.scheduled:
            end = part.start + part.num_tokens
            sampled[part.request] = [self._life(part.request).tokens[end]] if part.samples else []
        reports = []
        for load, number in flight.loaded:
            failures = Failures()
            if number is not None:
                failures = self.faults[number].failures
                self._tell(number)
            reports += [
                LoadReport(
                    rank=rank, ended=[load.number], failures=Failures() if rank else failures
                )
                for rank in range(self.setting.num_ranks)
            ]
        before = self._known()
        result = StepResult(tokens=sampled, reports=reports)
        self._take(self.scheduler.update(flight.step, result), before, flight)

    def end(
        self, number: int, rank: int, spoilt: Sequence[Target] = (), is_told: bool = True
    ) -> None:
        """A rank ends its part of a load; the load lands with the last one."""
        transfer = self.transfers[number]
        failures = Failures()
        if spoilt:
            self.num_troubles += 1
            transfer = replace(transfer, spoilt=tuple(spoilt), is_told=is_told)
            if is_told:
                failures = Fault(transfer.load, transfer.spoilt).failures
        pending = tuple(r for r in transfer.pending if r != rank)
        self.transfers[number] = replace(transfer, pending=pending)
        if not pending:
            del self.transfers[number]
            fault = self._land(transfer.load, transfer.spoilt)
            if fault is not None and transfer.is_told:
                self._tell(fault)
        self._report(LoadReport(rank=rank, ended=[number], failures=failures))

    def give_up(self, number: int, rank: int) -> None:
        """A rank gives a load up, and writes on."""
        transfer = self.transfers[number]
        self.num_troubles += 1
        self.transfers[number] = replace(transfer, spoilt=transfer.load.targets)
        self._report(LoadReport(rank=rank, given_up=[number]))

    def tell(self, number: int) -> None:
        """A failure is reported after the load was said to have ended well."""
        fault = self.faults[number]
        failures = fault.places if self.setting.late_steps else fault.failures
        self._tell(number)
        self._report(LoadReport(rank=0, failures=failures))

    def tell_again(self) -> None:
        fault, self.last = self.last, None
        assert fault is not None
        self._report(LoadReport(rank=0, failures=fault.failures))

    def _tell(self, number: int) -> None:
        """Note that a fault is reported now. It counts if all of it still belongs to its run, or
        if a late report was promised."""
        fault = self.faults[number]
        own = self._targets_of_runs(fault.load)
        is_promised = self._may_be_reported(fault.load)
        counts = is_promised or all(target in own for target in fault.targets)
        if counts and not is_promised:
            self._set_apart(number)
        self.faults[number] = replace(fault, is_reported=True, counts=counts)
        self.last = fault

    def _set_apart(self, number: int) -> None:
        """What runs that are over have computed from a fault is not known to have been: garbage
        that no run has in its table, or has registered, counts as another fault."""
        inside = self.scheduler.inspect()
        runs = self._runs()
        known = {int(gone.block_id) for run in runs for gone in run.given_back}
        known |= {b for run in runs for table in run.ended_tables or () for b in table}
        cached = self.cache.debug.cached()
        for request in inside.running:
            for group, table in enumerate(self.cache.blocks(request)):
                known.update(table)
                for position, block in enumerate(table):
                    if not block:
                        key = (group, digests_of(self.setting, self._life(request))[position])
                        known.update(self._registered(request, cached.get(key, ())))
        value, apart = garbage_of(number), next(n for n in range(99) if n not in self.faults)
        for at, cell in enumerate(self.device.cells):
            if value in cell and at not in known:
                self.faults[apart] = replace(self.faults[number], is_reported=True)
                self.device.cells[at] = [garbage_of(apart) if v == value else v for v in cell]

    def _registered(self, request: int, copies: Sequence[BlockId]) -> list[BlockId]:
        infos = zip(copies, self.cache.pool.describe(copies), strict=True)
        return [block for block, info in infos if info.author == request]

    def _runs(self) -> list[Run]:
        inside = self.scheduler.inspect()
        inside.ledgers.catch_up(inside.running)
        past = inside.ledgers.released.past()
        here = [inside.run_of(request) for request in inside.running.values()]
        here = [run._replace(given_back=past.given_back.get(run.request, ())) for run in here]
        return here + past.ended

    def _may_be_reported(self, load: Load) -> bool:
        """Without late steps, the report that ends a load is the last one on it."""
        ledgers = self.scheduler.ledgers
        may_come = bool(self.setting.late_steps or ledgers.transfers.pending(load.number))
        return may_come and load.number in ledgers.released.loads

    def _targets_of_runs(self, load: Load) -> set[tuple[int, int, int]]:
        """What the runs of a load's request hold, or have read of it and given back."""
        inside = self.scheduler.inspect()
        runs = [run for run in self._runs() if run.request == load.request]
        is_in_flight = inside.ledgers.released.is_in_flight(load.request)
        if not is_in_flight and not self._may_be_reported(load):
            runs = [run for run in runs if not run.has_ended]
        request = inside.running.get(load.request)
        if request is not None and (request.load is None or request.load.number != load.number):
            runs = [run for run in runs if run.has_ended]
        own = {(g.group, g.position, int(g.block_id)) for run in runs for g in run.given_back}
        for run in runs:
            own.update(_places(run.ended_tables or self.cache.blocks(run.request)))
        return own

    def _report(self, report: LoadReport) -> None:
        before = self._known()
        self._take(self.scheduler.report([report]), before)

    def abort(self, number: int) -> None:
        self.num_troubles += 1
        before = self._known()
        self._take([self.scheduler.abort(number)], before)

    def preempt(self, number: int) -> None:
        self.num_troubles += 1
        inside = self.scheduler.inspect()
        inside.preempt(inside.requests[number])
        self.cache.take_events()

    def evict(self) -> None:
        """Whoever takes the next blocks gets those that nobody finds, and one more."""
        self.num_troubles += 1
        found = {block for copies in self.cache.debug.cached().values() for block in copies}
        queue = self.cache.debug.free_queue()
        count = next((at + 1 for at, block in enumerate(queue) if block in found), 0)
        self.cache.pool.free(self.cache.pool.take(count))
        self.cache.take_events()

    # What comes out.

    def _known(self) -> dict[int, int]:
        """By request, how many of its tokens were known when its run started."""
        return {n: r.num_known for n, r in self.scheduler.inspect().running.items()}

    def _take(
        self, outputs: Sequence[Output], known: dict[int, int], flight: Flight | None = None
    ) -> None:
        taints = (
            {request: (value, where) for request, value, where in flight.taints} if flight else {}
        )
        for output in outputs:
            index = next(i for i, c in enumerate(self.clients) if c.number == output.request)
            self.clients[index] = self._told(self.clients[index], output, taints)
        self._check_spoilt(known)

    def _told(self, client: Client, output: Output, taints: dict[int, tuple[int, str]]) -> Client:
        life = self._life(client.number)
        if client.finish is not None:
            raise WrongError(f"request {client.number} has ended and gets {output}")
        end = client.num_tokens + len(output.tokens)
        if list(output.tokens) != life.outputs[client.num_tokens : end]:
            raise WrongError(f"token {client.num_tokens} of {life.outputs} came as {output}")
        spoilt = client.spoilt
        if output.tokens and client.number in taints:
            value, where = taints[client.number]
            number = fault_of(value)
            if number is None or self.faults[number].counts:
                raise WrongError(f"request {client.number} gets a token of garbage: {where}")
            spoilt = (*spoilt, (client.num_tokens, number))
        if output.prompt is not None:
            counts = output.prompt
            if client.is_counted or sum(counts) != life.num_prompt_tokens or min(counts) < 0:
                raise WrongError(f"the prompt of {life.num_prompt_tokens} counts as {counts}")
        elif output.tokens and not client.is_counted:
            raise WrongError(f"the first token comes without counts: {output}")
        self._check_finish(client, output, end)
        return Client(
            client.number,
            client.life,
            end,
            spoilt,
            client.is_counted or output.prompt is not None,
            output.finish,
        )

    def _check_finish(self, client: Client, output: Output, num_tokens: int) -> None:
        wanted = len(self._life(client.number).outputs)
        if output.finish is Finish.LENGTH and num_tokens != wanted:
            raise WrongError(f"request {client.number} ends with {num_tokens} of {wanted} tokens")
        if output.finish in {None, Finish.LENGTH, Finish.ABORTED}:
            return
        spoilt = [number for _, number in client.spoilt if self.faults[number].is_reported]
        if output.error != "tainted_output" or not spoilt:
            raise WrongError(f"request {client.number} ends with {output}; {client.spoilt}")

    def _check_spoilt(self, known: dict[int, int]) -> None:
        """Whoever was handed a token of garbage by the present run ends as soon as it is told."""
        for client in self.clients:
            if client.finish is not None or client.number not in known:
                continue
            for token, number in client.spoilt:
                life = self._life(client.number)
                is_new = life.num_prompt_tokens + token >= known[client.number]
                if is_new and self.faults[number].counts:
                    raise WrongError(
                        f"request {client.number} goes on after token {token} came of garbage"
                    )

    # What must hold between events.

    def check(self) -> None:
        self.scheduler.check_integrity()
        found = self.cache.debug.cached()
        self._check_findable(found)
        self._forget(found)
        if self.is_end():
            num_free, num_blocks = self.cache.pool.num_free, self.cache.config.num_blocks
            if num_free != num_blocks - 1 or self.cache.pool.num_held:
                raise WrongError(f"{num_free} of {num_blocks - 1} blocks are free at the end")

    def _check_findable(self, found: dict[tuple[int, bytes], list[BlockId]]) -> None:
        contents = contents_of(self.setting)
        for (group, digest), blocks in found.items():
            expected = contents[group, digest]
            for block in blocks:
                cell = self.device.cells[block]
                if cell == expected:
                    continue
                wrong = {value for value, right in zip(cell, expected, strict=False)} - {*expected}
                numbers = {fault_of(value) for value in wrong}
                if len(cell) == len(expected) and all(
                    n is not None and not self.faults[n].counts for n in numbers
                ):
                    continue
                raise WrongError(
                    f"block {block} is found in group {group}, and holds {cell} instead of "
                    f"{expected}"
                )

    def _forget(self, found: dict[tuple[int, bytes], list[BlockId]]) -> None:
        """Empty free blocks that nobody finds, and forget faults of which nothing is left."""
        kept = {block for copies in found.values() for block in copies}
        for block in self.cache.debug.free_queue():
            if block not in kept:
                self.device.cells[block] = []
        if self.faults:
            left = {fault_of(value) for cell in self.device.cells for value in cell}
            left |= {fault_of(value) for f in self.flights for _, value, _ in f.taints}
            left |= {number for f in self.flights for _, number in f.loaded}
            left |= {n for c in self.clients if c.finish is None for _, n in c.spoilt}
            self.faults = {n: fault for n, fault in self.faults.items() if n in left}

    def _life(self, number: int) -> Life:
        life = next(client.life for client in self.clients if client.number == number)
        return self.setting.lives()[life]


def begin(setting: Setting) -> World:
    """The world before anything has happened."""
    config = setting.config()
    blocks, tiers = CacheManager(config), WorldTiers()
    scheduler = Scheduler(blocks, setting.options, tiers)
    device = Device(config.topology.groups, config.num_blocks)
    return World(setting, blocks, tiers, scheduler, device)


def _subsets(targets: Sequence[Target]) -> Iterator[tuple[tuple[Target, ...], str]]:
    """All targets, and each of them if there are several."""
    yield tuple(targets), "all"
    if len(targets) > 1:
        for target in targets:
            yield (target,), f"group {target.group} position {target.position}"


def _places(tables: Sequence[Sequence[BlockId]]) -> Iterator[tuple[int, int, int]]:
    for group, table in enumerate(tables):
        for position, block in enumerate(table):
            yield group, position, block


def _plain(client: Client) -> tuple[Any, ...]:
    finish = client.finish and client.finish.value
    return (client.life, client.num_tokens, client.spoilt, client.is_counted, finish)
