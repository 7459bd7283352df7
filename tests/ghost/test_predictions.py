"""While a simulated engine loses loads and evicts, an index that hears its events is never wrong.

While a tier rests after failures, it is not read: then a hit may be shorter than `lower`, but is
never longer than `upper`. No cache is reset here.
"""

from collections import Counter
from dataclasses import replace
from typing import Final

from kvbraid.engine import EngineProfile
from kvbraid.events.wire import encode_batch
from kvbraid.hashing import HashAlgo
from kvbraid.spec import EngineDialect
from kvbraid.transfer.offload import OffloadManager

from tests.ghost.simulation import Simulation
from tests.tier_predictions import Listener, compare

NUM_SIMULATIONS: Final = 60
NUM_ASKED: Final = 4
"""Of the requests that came last."""


class Predicted(Simulation):
    """A simulation with an index that listens. `asked` counts what was compared."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        cache = self.setting.cache
        profile = EngineProfile(
            hash_algo=HashAlgo.SHA256, hash_seed=cache.hash_seed, dialect=EngineDialect.PURE
        )
        has_partial = bool(cache.topology.partial_hits)  # An index takes None for unknown.
        self.listener = Listener(replace(cache.topology, partial_hits=has_partial), profile)
        self.findable.publish = lambda events: self.listener.hear(events.to_bytes(0.0))
        self.offload.publish = lambda events: self.listener.hear(encode_batch(events))
        self.asked: Counter[str] = Counter()

    def _check(self) -> None:
        self.findable.replay(self.cache.take_events())
        super()._check()
        if self.offload.manager:
            self._compare(self.offload.manager)

    def _compare(self, manager: OffloadManager) -> None:
        tiers = manager._tiers
        is_resting = bool(tiers.read_rest.cooling(tiers.clock()))
        for life in [*self.engine.lives.values()][-NUM_ASKED:]:
            request = self.cache.add(life.tokens, extra=life.extra)
            row = self.listener.row(life.tokens, life.extra.cache_salt)
            for each in compare(row, manager, request):
                assert each.hit <= each.bounds.upper, each
                assert each.is_exact or (is_resting and each.key != "gpu"), each
                self.asked["exact" if each.is_exact else "resting"] += 1
            self.cache.release([request])


def test_no_bound_is_wrong_and_hits_inside_blocks_are_among_them() -> None:
    asked: Counter[str] = Counter()
    for seed in range(NUM_SIMULATIONS):
        simulation = Predicted(seed)
        if simulation.setting.own:
            simulation.run()
            asked += simulation.asked
            asked["inside"] += bool(simulation.setting.cache.topology.partial_hits)
    assert asked["inside"] > 3
    assert asked["exact"] > 50 * asked["resting"]
