"""What must hold in a small world: of what comes out, of what is found, of reports that count."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvbraid.ids import BlockId
from kvbraid.recovery import Run
from kvbraid.scheduler import Finish, Load, Output

from tests.ghost.device import fault_of, garbage_of
from tests.ghost.world.contents import contents_of, digests_of
from tests.ghost.world.parts import Client, Fault, Flight
from tests.ghost.world.state import WorldState


class WrongError(AssertionError):
    """Something that must never happen has happened."""


def means_another(world: WorldState, fault: Fault) -> bool:
    """Whether a later load fills such a block of such a group: a report would mean that."""
    named = {(target.group, target.block_id) for target in fault.targets}
    running = world.scheduler.inspect().running.values()
    loads = [request.load for request in running if request.load is not None]
    later = [load for load in loads if load.number > fault.load.number]
    return any((t.group, t.block_id) in named for load in later for t in load.targets)


def note_report(world: WorldState, number: int) -> None:
    """Note that a fault is reported now. It counts if all of it still belongs to its run, or
    if a late report was promised."""
    fault = world.faults[number]
    own = _targets_of_runs(world, fault.load)
    is_promised = _may_be_reported(world, fault.load)
    counts = is_promised or all(target in own for target in fault.targets)
    if counts and not is_promised:
        _set_apart(world, number)
    world.faults[number] = replace(fault, is_reported=True, counts=counts)
    world.last = fault


def _set_apart(world: WorldState, number: int) -> None:
    """What runs that are over have computed from a fault is not known to have been: garbage
    that no run has in its table, or has registered, counts as another fault."""
    inside = world.scheduler.inspect()
    runs = _runs(world)
    known = {int(gone.block_id) for run in runs for gone in run.given_back}
    known |= {b for run in runs for table in run.ended_tables or () for b in table}
    cached = world.cache.debug.cached()
    for request in inside.running:
        for group, table in enumerate(world.cache.blocks(request)):
            known.update(table)
            for position, block in enumerate(table):
                if not block:
                    key = (group, digests_of(world.setting, world.life_of(request))[position])
                    known.update(_registered(world, request, cached.get(key, ())))
    value, apart = garbage_of(number), next(n for n in range(99) if n not in world.faults)
    for at, cell in enumerate(world.device.cells):
        if value in cell and at not in known:
            world.faults[apart] = replace(world.faults[number], is_reported=True)
            world.device.cells[at] = [garbage_of(apart) if v == value else v for v in cell]


def _registered(world: WorldState, request: int, copies: Sequence[BlockId]) -> list[BlockId]:
    infos = zip(copies, world.cache.pool.describe(copies), strict=True)
    return [block for block, info in infos if info.author == request]


def _runs(world: WorldState) -> list[Run]:
    inside = world.scheduler.inspect()
    inside.ledgers.catch_up(inside.running)
    past = inside.ledgers.released.past()
    here = [inside.run_of(request) for request in inside.running.values()]
    here = [run._replace(given_back=past.given_back.get(run.request, ())) for run in here]
    return here + past.ended


def _may_be_reported(world: WorldState, load: Load) -> bool:
    """Without late steps, the report that ends a load is the last one on it."""
    ledgers = world.scheduler.ledgers
    may_come = bool(world.setting.late_steps or ledgers.transfers.pending(load.number))
    return may_come and load.number in ledgers.released.loads


def _targets_of_runs(world: WorldState, load: Load) -> set[tuple[int, int, int]]:
    """What the runs of a load's request hold, or have read of it and given back."""
    inside = world.scheduler.inspect()
    runs = [run for run in _runs(world) if run.request == load.request]
    is_in_flight = inside.ledgers.released.is_in_flight(load.request)
    if not is_in_flight and not _may_be_reported(world, load):
        runs = [run for run in runs if not run.has_ended]
    request = inside.running.get(load.request)
    if request is not None and (request.load is None or request.load.number != load.number):
        runs = [run for run in runs if run.has_ended]
    own = {(g.group, g.position, int(g.block_id)) for run in runs for g in run.given_back}
    for run in runs:
        own.update(_places(run.ended_tables or world.cache.blocks(run.request)))
    return own


def known_tokens(world: WorldState) -> dict[int, int]:
    """By request, how many of its tokens were known when its run started."""
    return {n: r.num_known for n, r in world.scheduler.inspect().running.items()}


def take(
    world: WorldState,
    outputs: Sequence[Output],
    known: dict[int, int],
    flight: Flight | None = None,
) -> None:
    taints = {request: (value, where) for request, value, where in flight.taints} if flight else {}
    for output in outputs:
        index = next(i for i, c in enumerate(world.clients) if c.number == output.request)
        world.clients[index] = _told(world, world.clients[index], output, taints)
    _check_spoilt(world, known)


def _told(
    world: WorldState, client: Client, output: Output, taints: dict[int, tuple[int, str]]
) -> Client:
    life = world.life_of(client.number)
    if client.finish is not None:
        raise WrongError(f"request {client.number} has ended and gets {output}")
    end = client.num_tokens + len(output.tokens)
    if list(output.tokens) != life.outputs[client.num_tokens : end]:
        raise WrongError(f"token {client.num_tokens} of {life.outputs} came as {output}")
    spoilt = client.spoilt
    if output.tokens and client.number in taints:
        value, where = taints[client.number]
        number = fault_of(value)
        if number is None or world.faults[number].counts:
            raise WrongError(f"request {client.number} gets a token of garbage: {where}")
        spoilt = (*spoilt, (client.num_tokens, number))
    if output.prompt is not None:
        counts = output.prompt
        if client.is_counted or sum(counts) != life.num_prompt_tokens or min(counts) < 0:
            raise WrongError(f"the prompt of {life.num_prompt_tokens} counts as {counts}")
    elif output.tokens and not client.is_counted:
        raise WrongError(f"the first token comes without counts: {output}")
    _check_finish(world, client, output, end)
    is_counted = client.is_counted or output.prompt is not None
    return replace(
        client, num_tokens=end, spoilt=spoilt, is_counted=is_counted, finish=output.finish
    )


def _check_finish(world: WorldState, client: Client, output: Output, num_tokens: int) -> None:
    wanted = len(world.life_of(client.number).outputs)
    if output.finish is Finish.LENGTH and num_tokens != wanted:
        raise WrongError(f"request {client.number} ends with {num_tokens} of {wanted} tokens")
    if output.finish in {None, Finish.LENGTH, Finish.ABORTED}:
        return
    spoilt = [number for _, number in client.spoilt if world.faults[number].is_reported]
    if output.error != "tainted_output" or not spoilt:
        raise WrongError(f"request {client.number} ends with {output}; {client.spoilt}")


def _check_spoilt(world: WorldState, known: dict[int, int]) -> None:
    """Whoever was handed a token of garbage by the present run ends as soon as it is told."""
    for client in world.clients:
        if client.finish is not None or client.number not in known:
            continue
        for token, number in client.spoilt:
            life = world.life_of(client.number)
            is_new = life.num_prompt_tokens + token >= known[client.number]
            if is_new and world.faults[number].counts:
                raise WrongError(
                    f"request {client.number} goes on after token {token} came of garbage"
                )


def check(world: WorldState) -> None:
    world.scheduler.check_integrity()
    found = world.cache.debug.cached()
    _check_findable(world, found)
    _forget(world, found)
    if world.is_end():
        num_free, num_blocks = world.cache.pool.num_free, world.cache.config.num_blocks
        if num_free != num_blocks - 1 or world.cache.pool.num_held:
            raise WrongError(f"{num_free} of {num_blocks - 1} blocks are free at the end")


def _check_findable(world: WorldState, found: dict[tuple[int, bytes], list[BlockId]]) -> None:
    contents = contents_of(world.setting)
    for (group, digest), blocks in found.items():
        expected = contents[group, digest]
        for block in blocks:
            cell = world.device.cells[block]
            if cell == expected:
                continue
            wrong = {value for value, right in zip(cell, expected, strict=False)} - {*expected}
            numbers = {fault_of(value) for value in wrong}
            if len(cell) == len(expected) and all(
                n is not None and not world.faults[n].counts for n in numbers
            ):
                continue
            raise WrongError(
                f"block {block} is found in group {group}, and holds {cell} instead of {expected}"
            )


def _forget(world: WorldState, found: dict[tuple[int, bytes], list[BlockId]]) -> None:
    """Empty free blocks that nobody finds, and forget faults of which nothing is left."""
    kept = {block for copies in found.values() for block in copies}
    for block in world.cache.debug.free_queue():
        if block not in kept:
            world.device.cells[block] = []
    if world.faults:
        left = {fault_of(value) for cell in world.device.cells for value in cell}
        left |= {fault_of(value) for f in world.flights for _, value, _ in f.taints}
        left |= {number for f in world.flights for _, number in f.loaded}
        left |= {n for c in world.clients if c.finish is None for _, n in c.spoilt}
        world.faults = {n: fault for n, fault in world.faults.items() if n in left}


def _places(tables: Sequence[Sequence[BlockId]]) -> Iterator[tuple[int, int, int]]:
    for group, table in enumerate(tables):
        for position, block in enumerate(table):
            yield group, position, block
