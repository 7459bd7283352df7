"""A block turns out to be garbage when copies of what was computed from it are in every tier.

The ranks of an engine say that a load has ended well. Steps later they say that one of its blocks
is garbage: what the request has computed is in host memory and on disk by then, or on its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests.vllm.drop_in_pair import tokens
from tests.vllm.offload.ghost_ranks import OffloadingEngine, Ranks
from tests.vllm.recovery.ghost_engine import LAYOUTS
from tests.vllm.recovery.ghost_worker import prefix_hashes, truth

if True:  # Only after `ghost_ranks` has imported vLLM with its warnings off.
    from kvbraid.integrations.vllm.offload import OffloadConnector
    from kvbraid.integrations.vllm.offload.messages import OffloadReport
    from kvbraid.loads import Cause, Failures, LoadReport, Record
    from kvbraid.spec import SpecKind
    from kvbraid.transfer.jobs import Item, Kind
    from kvbraid.transfer.keys import BlockKey
    from kvbraid.transfer.offload import Drop

START: Final = tokens(1, 130)
PROMPT: Final = START + tokens(2, 130)
NUM_TOKENS: Final = 40
RIGHT: Final = {*prefix_hashes(PROMPT + truth(PROMPT, NUM_TOKENS))}


@dataclass
class LateRanks(Ranks):
    """Ranks that load `garbage` once they `spoil`, and say so in the step after `tells`."""

    spoils: bool = False
    tells: bool = False
    spoilt_groups: Sequence[int] = range(4)
    garbage: set[int] = field(default_factory=set)

    def _move(self, kind: Kind, item: Item, *, is_good: bool) -> None:
        if self.spoils and kind is Kind.LOAD and item.group in self.spoilt_groups:
            self.spoils, is_good = False, False
            self.garbage.add(item.target)
        Ranks._move(self, kind, item, is_good=is_good)

    def execute(self, metadata: Any) -> OffloadReport | None:  # noqa: ANN401 - vLLM's own type.
        said = Ranks.execute(self, metadata)
        if not self.tells:
            return said
        self.tells = False
        late = OffloadReport(blocks=frozenset(self.garbage))
        return late if said is None else said.aggregate(late)


class LateEngine(OffloadingEngine):
    """Its tiers have what `START` was computed to; its device does not."""

    def __init__(self, name: str, *, is_async: bool) -> None:
        options: dict[str, object] = {"late_report_steps": 200}
        super().__init__(LAYOUTS[name], is_async=is_async, options=options, seed=1)
        self.ranks: LateRanks = LateRanks(self.worker.blocks, Random(1))
        self.add(START, 1)
        self.finish()
        self.scheduler.reset_prefix_cache()

    def check_outputs(self) -> None:
        """Nothing: until it is told, the engine answers with garbage."""

    def wrong(self) -> dict[str, list[BlockKey]]:
        """Return what each tier has of garbage."""
        contents = self.offload.contents()
        host = {key: self.ranks.slots[slot] for key, slot in contents["host"].items()}
        disk = {key: self.ranks.records[key] for key in contents["disk"]}
        return {
            tier: [key for key, held in blocks.items() if not self._is_right(key.group, held)]
            for tier, blocks in (("host", host), ("disk", disk))
        }

    def _is_right(self, group: int, held: dict[int, int]) -> bool:
        """Return whether all tokens of a block are: after these, it has what it held before."""
        spec = self.worker.groups[group]
        is_state = spec.kind is SpecKind.MAMBA
        return all(
            value in RIGHT for place, value in held.items() if is_state or place < spec.block_size
        )

    def is_spoilt(self) -> bool:
        return all(self.wrong().values())

    def step_until_output(self, name: str) -> None:
        while not self.outputs.get(name):
            assert self.scheduler.has_unfinished_requests()
            self.step()

    def live_until(self, moment: str) -> None:
        """Have a request read a block of garbage, and say so at this moment."""
        self.ranks.spoils = True
        self.add(PROMPT, NUM_TOKENS)
        while not self.ranks.garbage or (moment != "at once" and not self.is_spoilt()):
            assert self.scheduler.has_unfinished_requests()
            self.step()
        if moment == "after its end":
            self.finish()
            assert self.is_spoilt()
        self.ranks.tells = True
        self.step()
        self.finish()


@pytest.mark.parametrize("moment", ["at once", "while it runs", "after its end"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_computed_from_garbage_stays_in_any_tier(
    name: str, is_async: bool, moment: str
) -> None:
    engine = LateEngine(name, is_async=is_async)
    engine.live_until(moment)
    assert engine.wrong() == {"host": [], "disk": []}
    assert engine.told() == engine.had()
    assert not engine.offload.held_blocks
    drops = engine.offload.counts.drops
    if moment != "at once":
        assert all(drops[tier, Drop.RETRACTED] for tier in ("host", "disk"))
    engine.scheduler.reset_prefix_cache()
    again = engine.add(PROMPT, NUM_TOKENS).request_id
    engine.finish()
    assert engine.outputs[again] == truth(PROMPT, NUM_TOKENS)
    assert again not in engine.errors


@pytest.mark.parametrize("is_told", [True, False], ids=["as it is", "if nobody were told"])
def test_what_was_copied_on_the_device_is_garbage_as_well(
    is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request needs a window that the device has lost, and copies garbage beside it."""
    forget = OffloadConnector.forget_blocks

    def untold(*args: Any) -> Failures:  # noqa: ANN401
        forget(*args)
        return Failures()

    if not is_told:
        monkeypatch.setattr(OffloadConnector, "forget_blocks", untold)
    engine = LateEngine("window and full", is_async=True)
    engine.ranks.spoils, engine.ranks.spoilt_groups = True, [1]
    first = engine.add(PROMPT, NUM_TOKENS).request_id
    engine.step_until_output(first)
    cache = engine.scheduler.kv_cache_manager.cache
    windows = [b for (group, _), own in cache.debug.cached().items() if group == 0 for b in own]
    cache.pool.forget(windows)
    other = engine.add(PROMPT, NUM_TOKENS).request_id
    engine.step_until_output(other)
    assert engine.ranks.num_moved[Kind.COPY]
    engine.ranks.tells = True
    engine.step()
    engine.finish()
    assert engine.errors == ({first, other} if is_told else {first})
    assert any(engine.wrong().values()) is not is_told


def test_what_ranks_say_stays_beside_what_loads_lack() -> None:
    engine = OffloadingEngine(LAYOUTS["full"], is_async=False, seed=1)
    causes = {Record("host", b"key"): Cause.MISS}
    engine.offload.take_reports = lambda: [LoadReport(rank=0, failures=Failures(causes=causes))]
    said: Any = OffloadReport(blocks={7})
    output: Any = SimpleNamespace(kv_connector_worker_meta=said, finished_recving=None)
    engine.connector.settle(output)
    meta = output.kv_connector_worker_meta
    assert (meta.blocks, meta.causes) == ({7}, causes)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_connector_that_forgets_nothing_would_be_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OffloadConnector, "forget_blocks", lambda *_: None)
    engine = LateEngine(name, is_async=False)
    engine.live_until("while it runs")
    assert engine.is_spoilt()
