"""What happens in a small world: each event changes the state that it is given.

Whatever a rank or a tier may answer while a step is scheduled is said by the script.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvbraid.loads import Failures
from kvbraid.scheduler import Load, LoadReport, Offer, Query, Scheduled, StepResult, Target

from tests.ghost.device import TORN, Computation, garbage_of
from tests.ghost.world import promises
from tests.ghost.world.contents import expected_of, values_of
from tests.ghost.world.parts import Client, Fault, Flight, Script, Transfer
from tests.ghost.world.settings import BLOCK
from tests.ghost.world.state import WorldState


def add(world: WorldState, index: int) -> None:
    life = world.setting.lives()[index]
    prompt = life.tokens[: life.num_prompt_tokens]
    number = world.scheduler.add(prompt, max_new_tokens=len(life.outputs))
    world.clients.append(Client(number, index))


def schedule(world: WorldState, script: Script) -> None:
    offers: list[int] = []
    world.tiers.choose = lambda query: _offer(world, query, script, offers)
    step = world.scheduler.schedule()
    if step is None:
        return
    loaded = []
    for load in step.loads:
        world.num_loads += 1
        if load.is_async:
            ranks = tuple(range(world.setting.num_ranks))
            world.transfers[load.number] = Transfer(load, ranks)
            for target in load.targets:
                _fill(world, target, TORN)
        else:
            loaded.append((load, _land_now(world, load, script)))
    for block in step.work.blocks_to_zero:
        world.device.zero(block)
    for source, destination in step.work.copies:
        world.device.copy(source, destination)
    taints = tuple(taint for part in step.scheduled if (taint := _compute(world, part)))
    world.flights.append(Flight(step, taints, tuple(loaded)))


def _offer(world: WorldState, query: Query, script: Script, offers: list[int]) -> Offer | None:
    if world.num_loads + len(offers) >= world.setting.num_loads or query.refused:
        return None
    end, hit = len(query.tokens), query.num_hit_tokens
    ends = list(range(hit + BLOCK, end + world.setting.is_async, BLOCK))
    if world.setting.is_async and end % BLOCK and end > hit:
        ends.append(end)
    choice = script.choose(["(no load)", *(f"(load of {e - hit})" for e in ends)])
    if not choice:
        return None
    offers.append(choice)
    return Offer(num_tokens=ends[choice - 1] - hit, tier="tier", is_async=world.setting.is_async)


def _land_now(world: WorldState, load: Load, script: Script) -> int | None:
    """Land a synchronous load; return the fault."""
    parts = list(subsets(load.targets))
    names = ["(lands)"]
    if world.num_troubles < world.setting.num_troubles:
        names += [f"(fails: {name})" for _, name in parts]
        names += [f"(fails silently: {name})" for _, name in parts]
    choice = script.choose(names)
    if not choice:
        _land(world, load, ())
        return None
    spoilt, _ = parts[(choice - 1) % len(parts)]
    world.num_troubles += 1
    number = _land(world, load, spoilt)
    return number if choice <= len(parts) else None


def _land(world: WorldState, load: Load, spoilt: Sequence[Target]) -> int | None:
    """Write what a load brings; return the fault."""
    end = load.start + load.num_tokens
    life = world.life_of(load.request)
    number = None
    if spoilt:
        number = next(n for n in range(99) if n not in world.faults)
        world.faults[number] = Fault(load, tuple(spoilt))
    for target in load.targets:
        if number is not None and target in spoilt:
            _fill(world, target, garbage_of(number))
            continue
        values = values_of(world.device, life, target.group, target.position, end)
        cell = world.device.cell(target.block_id, target.group)
        world.device.fill(target.block_id, values + cell[len(values) :])
    return number


def _fill(world: WorldState, target: Target, value: int) -> None:
    size = len(world.device.cell(target.block_id, target.group))
    world.device.fill(target.block_id, [value] * size)


def _compute(world: WorldState, part: Scheduled) -> tuple[int, int, str] | None:
    life = world.life_of(part.request)
    work = Computation(
        request=part.request,
        life=life,
        expected=expected_of(world.device, life),
        start=part.start,
        end=part.start + part.num_tokens,
        tables=world.cache.blocks(part.request),
    )
    taint = world.device.run(work)
    world.device._sampled.clear()  # What was handed out is right to go on from.
    return None if taint is None else (part.request, taint.value, taint.where)


def update(world: WorldState) -> None:
    flight = world.flights.popleft()
    sampled = {}
    for part in flight.step.scheduled:
        end = part.start + part.num_tokens
        sampled[part.request] = [world.life_of(part.request).tokens[end]] if part.samples else []
    reports = []
    for load, number in flight.loaded:
        failures = Failures()
        if number is not None:
            failures = world.faults[number].failures
            promises.note_report(world, number)
        reports += [
            LoadReport(rank=rank, ended=[load.number], failures=Failures() if rank else failures)
            for rank in range(world.setting.num_ranks)
        ]
    before = promises.known_tokens(world)
    result = StepResult(tokens=sampled, reports=reports)
    promises.take(world, world.scheduler.update(flight.step, result), before, flight)


def end(
    world: WorldState, number: int, rank: int, spoilt: Sequence[Target] = (), is_told: bool = True
) -> None:
    """A rank ends its part of a load; the load lands with the last one."""
    transfer = world.transfers[number]
    failures = Failures()
    if spoilt:
        world.num_troubles += 1
        transfer = replace(transfer, spoilt=tuple(spoilt), is_told=is_told)
        if is_told:
            failures = Fault(transfer.load, transfer.spoilt).failures
    pending = tuple(r for r in transfer.pending if r != rank)
    world.transfers[number] = replace(transfer, pending=pending)
    if not pending:
        del world.transfers[number]
        fault = _land(world, transfer.load, transfer.spoilt)
        if fault is not None and transfer.is_told:
            promises.note_report(world, fault)
    _report(world, LoadReport(rank=rank, ended=[number], failures=failures))


def give_up(world: WorldState, number: int, rank: int) -> None:
    """A rank gives a load up, and writes on."""
    transfer = world.transfers[number]
    world.num_troubles += 1
    world.transfers[number] = replace(transfer, spoilt=transfer.load.targets)
    _report(world, LoadReport(rank=rank, given_up=[number]))


def tell(world: WorldState, number: int) -> None:
    """A failure is reported after the load was said to have ended well."""
    fault = world.faults[number]
    failures = fault.places if world.setting.late_steps else fault.failures
    promises.note_report(world, number)
    _report(world, LoadReport(rank=0, failures=failures))


def tell_again(world: WorldState) -> None:
    fault, world.last = world.last, None
    assert fault is not None
    _report(world, LoadReport(rank=0, failures=fault.failures))


def _report(world: WorldState, report: LoadReport) -> None:
    before = promises.known_tokens(world)
    promises.take(world, world.scheduler.report([report]), before)


def abort(world: WorldState, number: int) -> None:
    world.num_troubles += 1
    before = promises.known_tokens(world)
    promises.take(world, [world.scheduler.abort(number)], before)


def preempt(world: WorldState, number: int) -> None:
    world.num_troubles += 1
    inside = world.scheduler.inspect()
    inside.preempt(inside.requests[number])
    world.cache.take_events()


def evict(world: WorldState) -> None:
    """Whoever takes the next blocks gets those that nobody finds, and one more."""
    world.num_troubles += 1
    found = {block for copies in world.cache.debug.cached().values() for block in copies}
    queue = world.cache.debug.free_queue()
    count = next((at + 1 for at, block in enumerate(queue) if block in found), 0)
    world.cache.pool.free(world.cache.pool.take(count))
    world.cache.take_events()


def subsets(targets: Sequence[Target]) -> Iterator[tuple[tuple[Target, ...], str]]:
    """All targets, and each of them if there are several."""
    yield tuple(targets), "all"
    if len(targets) > 1:
        for target in targets:
            yield (target,), f"group {target.group} position {target.position}"
