"""From what workers say of loads in a step to failures that a decision takes.

A load under way concerns nobody yet: its blocks are not findable and nobody reads them. What fails
is told once the load has ended: until then a worker may write its blocks, and nobody else may.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from vllm.v1.outputs import KVConnectorOutput

from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.recovery.failures import LoadFailures
from kvbraid.integrations.vllm.recovery.request_runs import RequestRun, RequestRuns
from kvbraid.loads import Failures, GroupBlock
from kvbraid.recovery import Ignored


@dataclass(slots=True)
class _Said:
    """What workers said, with the numbers of requests."""

    places: dict[int, dict[int, set[int]]]
    group_blocks: set[GroupBlock]
    blocks: set[BlockId]
    requests: set[int]
    contents: set[GroupBlock] = field(default_factory=set)
    ignored: Counter[Ignored] = field(default_factory=Counter)


class Reports:
    """The reports of one engine, and what is kept back of them."""

    def __init__(self, runs: RequestRuns) -> None:
        self._runs = runs
        self._kept_back: dict[str, set[GroupBlock]] = {}
        self._ignored: Counter[Ignored] = Counter()

    def read(self, output: KVConnectorOutput, *, keeps_back: bool) -> Failures:
        """Return what failed; of loads under way nothing if it is kept back."""
        meta = output.kv_connector_worker_meta
        failures = meta if isinstance(meta, LoadFailures) else LoadFailures()
        said = self._numbered(failures, output)
        for request_id in output.finished_recving or ():
            self._runs.load_ended(request_id)
            said.contents |= self._kept_back.pop(request_id, set())
        if keeps_back:
            for run in self._runs.live():
                if run.is_loading:
                    self._keep_back(run, said)
        self._ignored += said.ignored
        return Failures(
            places=said.places,
            group_blocks=said.group_blocks,
            blocks=said.blocks,
            requests=said.requests,
            contents=said.contents,
            causes=failures.causes,
        )

    def _numbered(self, failures: LoadFailures, output: KVConnectorOutput) -> _Said:
        said = _Said(
            places={},
            group_blocks={GroupBlock(g, BlockId(b)) for g, b in failures.group_blocks},
            blocks={BlockId(b) for b in (*failures.blocks, *output.invalid_block_ids)},
            requests=set(),
        )
        for request_id in {*failures.requests, *output.failed_recving}:
            numbers = self._runs.numbers_of(request_id)
            said.requests.update(numbers)
            said.ignored[Ignored.UNKNOWN_REQUEST] += not numbers
        for request_id, groups in failures.places.items():
            numbers = self._runs.numbers_of(request_id)
            for number in numbers:
                said.places[number] = {group: set(own) for group, own in groups.items()}
            if not numbers:
                said.ignored[Ignored.UNKNOWN_REQUEST] += sum(map(len, groups.values()))
        return said

    def _keep_back(self, run: RequestRun, said: _Said) -> None:
        loaded = {
            GroupBlock(each.group, each.block_id): each
            for each in self._runs.loaded(run.number, run)
        }
        own = {pair.block_id for pair in loaded}
        failed = {pair for pair in loaded if pair.block_id in said.blocks}
        failed |= said.group_blocks & loaded.keys()
        if failed:
            # What such a block held before it was handed out for this load may be meant, too.
            before = self._runs.blocks_before()
            said.blocks -= own - before
            said.group_blocks -= {pair for pair in loaded if pair.block_id not in before}
        if run.number in said.requests:
            said.requests.remove(run.number)
            failed |= loaded.keys()
        places = said.places.get(run.number, {})
        for pair, each in loaded.items():
            if each.position in places.get(each.group, ()):
                places[each.group].remove(each.position)
                failed.add(pair)
        if failed:
            self._kept_back.setdefault(run.request.request_id, set()).update(failed)

    def kept_back(self) -> Mapping[str, Collection[GroupBlock]]:
        """Return the failed blocks of loads under way, by request."""
        return self._kept_back

    def forget(self, request_id: str) -> None:
        """Forget what was kept back of a request that has ended or starts over."""
        self._kept_back.pop(request_id, None)

    def take_ignored(self) -> Counter[Ignored]:
        """Return what did not count since the last call."""
        taken, self._ignored = self._ignored, Counter()
        return taken
