"""One simulated pod: a real cache, and what it has not told the index yet.

A pod prefills one prompt after the other. What a prompt can reuse is looked up when its prefill
begins, as an engine does. Nothing is computed: the caller's clock says when the prefill is done.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.cache import CacheConfig, CacheManager, Events, Interval, Retention
from kvbraid.engine import EngineProfile
from kvbraid.errors import TooLargeError
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId
from kvbraid.reading import POSITIVE, Rule, check
from kvbraid.sim.one_by_one import OneByOne
from kvbraid.sim.routing.pace import Pace
from kvbraid.sim.routing.workloads import TokenArray
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.sim.traces.simulation import check_pool
from kvbraid.spec import EngineDialect

MODEL: Final = "simulated"
_SEED: Final = "0"
_DELAY: Final = Rule(lambda value: 0 <= value < float("inf"), "seconds, at least 0")
_SHARE: Final = Rule(lambda value: 0 <= value <= 1, "a share, 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """Pods that are all alike.

    Attributes:
        model: What they serve.
        num_blocks: The blocks of each pod's pool, the null block included.
        num_pods: How many there are.
        pace: How fast they are.
        retention: Which windows and states they keep.
        delay_s: The seconds from the end of a prefill until the index has its events.
        loss: The share of messages that get lost for good. The next message tells. With 1,
            pods are without events.

    Raises:
        InvalidValueError: There is no pod, a pool cannot hold anything, or a number is out of
            range.
    """

    model: SimulatedModel
    num_blocks: int
    num_pods: int = 8
    pace: Pace = Pace()  # noqa: RUF009 - frozen
    retention: Retention = Interval(0)  # noqa: RUF009 - frozen
    delay_s: float = 0.02
    loss: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a fleet that there cannot be."""
        check("num_pods", self.num_pods, POSITIVE)
        check("delay_s", self.delay_s, _DELAY)
        check("loss", self.loss, _SHARE)
        check_pool(self.model, self.num_blocks)

    def engine(self) -> EngineProfile:
        """Return what the index is told about the pods' engines."""
        return EngineProfile(
            dialect=EngineDialect.PURE,
            hash_algo=HashAlgo.XXHASH,
            hash_seed=_SEED,
            retention=self.retention.tokens if isinstance(self.retention, Interval) else None,
            num_gpu_blocks=self.num_blocks,
        )


class Prefill(NamedTuple):
    """What one prefill reuses, and the messages that it sends."""

    cached: int
    messages: list[bytes]


class Sent(NamedTuple):
    """A request on its way, and what the router took and the index promised for its pod."""

    number: int
    tokens: TokenArray
    came: float
    expected: int
    lower: int
    upper: int
    is_settled: bool


class SimulatedPod:
    """One pod. `decoding` is how many answers it gives now."""

    def __init__(self, name: PodId, fleet: SimulatedFleet) -> None:
        self.name = name
        self.line: deque[Sent] = deque()
        self.is_busy = False
        self.has_gap = False  # A message was lost, and none has come since.
        self.num_untold = 0  # Messages that the index does not know of.
        self.decoding = 0
        self._messages: list[bytes] = []
        self._cache = CacheManager(
            CacheConfig(
                topology=fleet.model.topology,
                num_blocks=fleet.num_blocks,
                hash_algo=HashAlgo.XXHASH,
                hash_seed=_SEED,
                events=True,
                retention=fleet.retention,
                max_in_flight_tokens=fleet.pace.prefill.step_tokens,
            )
        )
        self._engine = OneByOne(
            self._cache, max_step_tokens=fleet.pace.prefill.step_tokens, publish=self._publish
        )

    @property
    def is_settled(self) -> bool:
        """Whether the index knows all that the pod has done, and the pod does nothing."""
        return not (self.is_busy or self.num_untold or self.has_gap)

    def check_fits(self, num_tokens: int) -> None:
        """Raise TooLargeError unless the pool can hold a prompt of so many tokens."""
        if not self._cache.can_ever_fit(num_tokens):
            msg = f"a prompt of {num_tokens:,} tokens does not fit into a pod's pool of "
            msg += f"{self._cache.config.num_blocks:,} blocks; give the pods more"
            raise TooLargeError(msg)

    def prefill(self, tokens: TokenArray) -> Prefill:
        """Look a prompt up and keep it; the messages are those of its steps.

        Raises:
            TooLargeError: The pool cannot hold the prompt.
        """
        self.check_fits(len(tokens))
        cached = self._engine.run(tokens)
        messages, self._messages = self._messages, []
        self.num_untold += len(messages)
        return Prefill(cached, messages)

    def _publish(self, events: Events) -> None:
        self._messages.append(events.to_bytes(0.0))
