"""The ghost engine runs steps on the ghost device, each completely after the one before."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvbraid.ids import BlockId
from kvbraid.scheduler import Load, LoadReport, Scheduled, Step, StepResult

from tests.ghost.device import EMPTY, Computation, Device, Taint
from tests.ghost.tiers import REMOTE
from tests.ghost.transfers import Transfer, Transfers
from tests.ghost.truth import GARBAGE_TOKEN, Life

Tables = list[list[BlockId]]


@dataclass(slots=True)
class Flight:
    """A step that is scheduled and has no result yet. `writes` are the blocks that it writes."""

    step: Step
    parts: list[tuple[Scheduled, Computation]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    writes: set[int] = field(default_factory=set)
    taints: dict[int, Taint] = field(default_factory=dict)
    is_executed: bool = False


class Engine:
    """The steps in flight of one engine. `lives` and `expected` are by request."""

    def __init__(self, device: Device, transfers: Transfers) -> None:
        self.device = device
        self.transfers = transfers
        self.lives: dict[int, Life] = {}
        self.expected: dict[int, list[list[int]]] = {}
        self.flights: deque[Flight] = deque()
        self.garbage_tokens: list[Taint] = []

    def take(self, step: Step, tables: Callable[[int], Tables]) -> Flight:
        """Take over a step, with the block tables of now."""
        flight = Flight(step)
        for part in step.scheduled:
            request, end = part.request, part.start + part.num_tokens
            life, expected = self.lives[request], self.expected[request]
            own = tables(request)
            work = Computation(request, life, expected, part.start, end, own, part.samples)
            flight.parts.append((part, work))
            for spec, table in zip(self.device.groups, work.tables, strict=True):
                flight.writes.update(table[part.start // spec.block_size :])
        for load in step.loads:
            flight.writes.update(target.block_id for target in load.targets)
            if load.tier == REMOTE:
                flight.transfers.append(Transfer(load, self._content(load)))
        flight.writes.update(destination for _, destination in step.work.copies)
        self.flights.append(flight)
        return flight

    def _content(self, load: Load) -> list[list[int]]:
        """What `remote` has for each target."""
        expected, end = self.expected[load.request], load.start + load.num_tokens
        contents = []
        for group, position, _ in load.targets:
            size, own = self.device.groups[group].block_size, expected[group]
            first, last = position * size, min((position + 1) * size, end)
            if self.device.is_state[group]:
                contents.append([own[end - 1]])
            else:
                contents.append(own[first:last] + [EMPTY] * (first + size - last))
        return contents

    def execute(self, flight: Flight) -> None:
        flight.is_executed = True
        for transfer in flight.transfers:
            self.transfers.begin(transfer)
        for block in flight.step.work.blocks_to_zero:
            self.device.zero(block)
        for source, destination in flight.step.work.copies:
            self.device.copy(source, destination)
        for part, work in flight.parts:
            taint = self.device.run(work)
            if taint:
                flight.taints[part.request] = taint

    def result(self, flight: Flight, reports: list[LoadReport]) -> StepResult:
        tokens: dict[int, list[int]] = {}
        for part, work in flight.parts:
            if part.samples:
                tokens[part.request] = [self._sampled(flight, work)]
        return StepResult(tokens=tokens, reports=reports)

    def _sampled(self, flight: Flight, work: Computation) -> int:
        taint = flight.taints.get(work.request)
        if taint is None:
            return work.life.tokens[work.end]
        self.garbage_tokens.append(taint)
        return GARBAGE_TOKEN + len(self.garbage_tokens) - 1

    def unwritten(self) -> set[int]:
        """The blocks that are still to be written by steps in flight."""
        late = [flight.writes for flight in self.flights if not flight.is_executed]
        return set().union(*late)
