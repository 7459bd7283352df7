"""Which pod gets a request: costs in seconds, what was sent and has not come back, and a choice.

Everything here is arithmetic on numbers that somebody else has measured. Times are handed in, so
the same calls give the same choices; nothing reads a clock, and nothing waits.

>>> from random import Random
>>> from kvbraid.fleet import FleetIndex, Request
>>> from kvbraid.ids import PodId
>>> from kvbraid.spec import GroupSpec, SpecKind, Topology
>>> attention = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
>>> index = FleetIndex()
>>> for pod in (PodId("a"), PodId("b")):
...     index.register(pod, model="m", topology=attention)
>>> router = Router(index, chance=Random(1))
>>> request = Request(model="m", token_ids=range(4000))
>>> first = router.pick("first", request, now=0.0)
>>> again = router.pick("again", request, now=0.001)
>>> again.rank == first.rank  # Waiting for its prefill costs less than a second one.
True
>>> router.end("first", now=1.0), router.end("again", now=1.0)
(True, True)

In reading order:

    seconds    what a prompt costs a pod, in seconds
    fitting    the same, as requests turn out to take
    asking     what the router asks of an index
    view       what is known about the candidates when one is chosen
    costs      the rule of kvbraid: waiting, prefill, and what both cost others
    baselines  the published rules of other routers, with the same interface
    bookings   what each rank was sent and has not done yet
    replica_loads  the same of other replicas, as they say
    engine_load  what engines say of their load, and how much of it others have sent
    standing   what else is said about a rank, and who may be chosen
    decision   one choice, with all that it was made from
    in_use     what counts for one model now: coefficients, and the load of its ranks
    router     the face: requests come, ranks are chosen, reports come back
"""

from kvbraid.policy.asking import Promisable, Promising, Remembered
from kvbraid.policy.baselines import BASELINES
from kvbraid.policy.bookings import Bookings
from kvbraid.policy.costs import CostOptions, CostRule, Terms
from kvbraid.policy.decision import Decision
from kvbraid.policy.engine_load import EngineLoad
from kvbraid.policy.fitting import Fitted
from kvbraid.policy.replica_loads import RankLoad, RankLoads
from kvbraid.policy.router import Router, RouterOptions
from kvbraid.policy.seconds import Seconds
from kvbraid.policy.standing import Standing
from kvbraid.policy.view import FleetView, RoutingPolicy

__all__ = [
    "BASELINES",
    "Bookings",
    "CostOptions",
    "CostRule",
    "Decision",
    "EngineLoad",
    "Fitted",
    "FleetView",
    "Promisable",
    "Promising",
    "RankLoad",
    "RankLoads",
    "Remembered",
    "Router",
    "RouterOptions",
    "RoutingPolicy",
    "Seconds",
    "Standing",
    "Terms",
]
