"""What ranks of every make have in common: jobs wait for steps, and what they write lands.

A block of the device that jobs write is whole once every rank has written it, and nobody else may
write it in between.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from kvbraid.ids import BlockId
from kvbraid.transfer.jobs import Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey

from tests.ghost.checks import BadOutcomeError
from tests.ghost.device import TORN, Device
from tests.ghost.faults import Tally


@dataclass(slots=True)
class _Landing:
    """A block of the device that a job writes: the bytes of each rank, or None for garbage."""

    size: int
    stamp: int
    parts: list[bytes | None] = field(default_factory=list)


class EngineRanks:
    """All ranks of one engine. `share` is the share of jobs with a fault."""

    def __init__(
        self, device: Device, random: Random, num_ranks: int, tiers: Sequence[str], share: float
    ) -> None:
        self.device = device
        self.random = random
        self.num_ranks = num_ranks
        self.tiers = tuple(tiers)
        self.share = share
        self.tick = 0
        self.faults: Counter[str] = Counter()
        self._queued: list[tuple[int, Job]] = []
        self._landings: dict[int, _Landing] = {}
        self._results: list[tuple[int, JobResult]] = []

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        return bool(self._queued or self._results)

    def give(self, jobs: Sequence[Job], step: int) -> None:
        """Take jobs that may begin when all steps before this one have run."""
        self._queued += [(step, job) for job in jobs]

    def begin(self, step: int) -> None:
        """Begin what may run beside this step."""
        ready = [job for before, job in self._queued if before <= step]
        self._queued = [(before, job) for before, job in self._queued if before > step]
        for job in ready:
            if job.kind in {Kind.LOAD, Kind.COPY}:
                self._tear(job)
            self._begin(job)

    def _tear(self, job: Job) -> None:
        for item in job.items:
            size = len(self.device.cell(item.target, item.group))
            self.device.fill(item.target, [TORN] * size)
            self._landings[item.target] = _Landing(size, self.device.writes[item.target])

    def _begin(self, job: Job) -> None:
        """Begin a job whose targets are torn by now."""
        raise NotImplementedError

    def advance(self) -> None:
        """Do what is due in this tick."""
        raise NotImplementedError

    def contents(self, tier: str, key: BlockKey, slot: BlockId) -> list[bytes | None]:
        """Return what each rank has of a block in a tier; None if a fault has taken it."""
        raise NotImplementedError

    def count(self, tally: Tally) -> None:
        """Add what was injected, and what was moved."""
        tally.tier_faults.update(self.faults)

    def check(self) -> None:
        """Check what only these ranks have."""

    def close(self) -> None:
        """Give everything back."""

    def land(self, block: int, content: bytes | None) -> None:
        """Let one rank have written its part of a block, or garbage there."""
        landing = self._landings[block]
        if self.device.writes[block] != landing.stamp:
            raise BadOutcomeError(f"block {block} is written by a job and by somebody else")
        landing.parts.append(content)
        values = array("q")
        is_whole = len(landing.parts) == self.num_ranks and len({*landing.parts}) == 1
        if is_whole and content is not None:
            values.frombytes(content)
        self.device.fill(block, values or [TORN] * landing.size)
        landing.stamp = self.device.writes[block]

    def take_results(self) -> list[tuple[int, JobResult]]:
        """Return the answers since the last call, each with its rank."""
        results, self._results = self._results, []
        return results
