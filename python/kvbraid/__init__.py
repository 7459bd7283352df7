"""kvbraid: exact reusable prefixes for hybrid-attention language models.

A public name is resolved when it is first used. `import kvbraid` therefore loads no other module,
and the modules that work without the native core (`kvbraid.models`, `kvbraid.spec`) never load it.

In reading order:

    ids            one type per identifier; `errors` is the whole error tree
    reading        says what is wrong with a value or a document, by name
    spec           what one cache consists of; `engine` is what a pod's engine does apart from that
    hashing        from tokens to the engines' block hashes; `tokenizer` has tokens for a text
    resume         how much of a request one cache can reuse
    models/        from a model's config.json to its layers and groups
    spec_mapping   a pod as operators describe it, read with `models/`
    events/        what engines publish
    loads/         the words of loads from other tiers
    cache/         one engine's block cache
    layout/        where every byte of a cache lies
    recovery/      what to do when loads fail; `state_files` keeps what decisions were made from
    scheduler/     the example for engine builders
    transfer/      blocks moved between a device, host memory and slower tiers
    fleet/         how much of a request each pod can reuse
    policy/        which pod gets a request
    service/       sockets, HTTP and clocks
    gateway/       requests to pods, and answers back
    integrations/  engines on our parts
    sim/           fleets and caches without a model
    report/        results as people see them
    cli/           the command; `extras` says what is not installed
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvbraid._native import __version__ as __version__
    from kvbraid.engine import EngineProfile as EngineProfile
    from kvbraid.errors import (
        CaptureError as CaptureError,
        FullError as FullError,
        InvalidValueError as InvalidValueError,
        KvbraidError as KvbraidError,
        LayoutError as LayoutError,
        NoRankError as NoRankError,
        NotHeldError as NotHeldError,
        ServiceError as ServiceError,
        SnapshotError as SnapshotError,
        TooLargeError as TooLargeError,
        TopologyError as TopologyError,
        TraceError as TraceError,
        UnknownError as UnknownError,
        UnsupportedError as UnsupportedError,
    )
    from kvbraid.fleet.answer import (
        Applied as Applied,
        Bounds as Bounds,
        Explanation as Explanation,
        PodExplanation as PodExplanation,
        PodInfo as PodInfo,
        PodScore as PodScore,
        Scores as Scores,
    )
    from kvbraid.fleet.index import (
        FleetIndex as FleetIndex,
        IndexOptions as IndexOptions,
    )
    from kvbraid.fleet.request import Request as Request
    from kvbraid.hashing import (
        EngineHash as EngineHash,
        HashAlgo as HashAlgo,
        MediaItem as MediaItem,
    )
    from kvbraid.ids import (
        BlockId as BlockId,
        GroupId as GroupId,
        PodId as PodId,
        PodState as PodState,
        Tier as Tier,
    )
    from kvbraid.service.feeds.rank_feed import PodFeed as PodFeed
    from kvbraid.service.feeds.subscriber import Subscriber as Subscriber
    from kvbraid.spec import (
        EngineDialect as EngineDialect,
        GroupSpec as GroupSpec,
        SpecKind as SpecKind,
        Topology as Topology,
    )
    from kvbraid.spec_mapping import (
        pod_from_mapping as pod_from_mapping,
        profile_from_mapping as profile_from_mapping,
        topology_from_mapping as topology_from_mapping,
    )

_NAMES: Final = {
    "_native": ("__version__",),
    "engine": ("EngineProfile",),
    "errors": (
        "CaptureError",
        "FullError",
        "InvalidValueError",
        "KvbraidError",
        "LayoutError",
        "NoRankError",
        "NotHeldError",
        "ServiceError",
        "SnapshotError",
        "TooLargeError",
        "TopologyError",
        "TraceError",
        "UnknownError",
        "UnsupportedError",
    ),
    "fleet.answer": (
        "Applied",
        "Bounds",
        "Explanation",
        "PodExplanation",
        "PodInfo",
        "PodScore",
        "Scores",
    ),
    "fleet.index": ("FleetIndex", "IndexOptions"),
    "fleet.request": ("Request",),
    "hashing": ("EngineHash", "HashAlgo", "MediaItem"),
    "ids": ("BlockId", "GroupId", "PodId", "PodState", "Tier"),
    "service.feeds.rank_feed": ("PodFeed",),
    "service.feeds.subscriber": ("Subscriber",),
    "spec": ("EngineDialect", "GroupSpec", "SpecKind", "Topology"),
    "spec_mapping": ("pod_from_mapping", "profile_from_mapping", "topology_from_mapping"),
}
"""Each module of the package with the names that it gives to the package itself."""

_MODULES: Final = {name: f"kvbraid.{module}" for module, names in _NAMES.items() for name in names}

_OF_SERVE: Final = frozenset({"PodFeed", "Subscriber"})
"""Names that need the extra `serve`: `from kvbraid import *` works without it."""

__all__ = sorted(_MODULES.keys() - _OF_SERVE)  # noqa: PLE0605 - the names of the table.

if not TYPE_CHECKING:  # A type checker that saw it would accept any name at all.

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted(_MODULES)
