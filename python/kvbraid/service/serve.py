"""`kvbraid serve`: the real index and subscriber put together and run."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvbraid.events.digest import digests_under
from kvbraid.fleet.index import MOST_RANKS, FleetIndex, IndexOptions
from kvbraid.service.capacity import raise_descriptor_limit
from kvbraid.service.config import FleetConfig
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.http.server import end_process, run_server
from kvbraid.service.in_force import InForce
from kvbraid.service.logs import configure
from kvbraid.service.neighbour import Neighbour
from kvbraid.service.picking import Picking
from kvbraid.service.readiness import Readiness
from kvbraid.service.registry import Service
from kvbraid.service.shards.front import Front
from kvbraid.service.shards.no_feed import NoFeed
from kvbraid.service.shared.log_reader import LogReader
from kvbraid.service.snapshots import Snapshots, read_secret


def serve(config: FleetConfig, *, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; may end the process itself, with 0.

    Raises as `run_server`.
    """
    run_server(config, new_service(config), announce=announce)
    end_process()


def new_service(config: FleetConfig, new_feed: Callable[..., Subscriber] = Subscriber) -> Service:
    """Make the service of a configuration; nothing of it runs yet, and lines are logged.

    `new_feed` makes what follows pods, from the index and the options of a `Subscriber`.
    """
    configure(config.server.log_level, config.server.log_format)
    raise_descriptor_limit()
    if config.shared.shards:
        return _new_front(config)
    folder = beside(config, config.index.snapshots)
    shared = beside(config, config.index.secret_file)
    secret = None if folder is None else read_secret(folder, shared)
    index = FleetIndex(replace(index_options(config), secret=secret))
    spread_s = 0.0 if config.shared.url is None else config.shared.replay_spread_s
    feed = new_feed(index, silence_s=config.server.silence_s, replay_spread_s=spread_s)
    readiness = Readiness(config.server.ready_after_s, clock=time.monotonic)
    service = Service(
        index,
        feed,
        limits=config.limits,
        readiness=readiness,
        journal=feed.journal,
        picking=Picking(index, config.routing, console=config.console),
        in_force=InForce(config),
    )
    service.shard = config.shared.own_shard
    if config.shared.log is not None and new_feed is Subscriber:
        feed.log = service.log = LogReader(config.shared)
    if folder is not None and secret is not None:
        feed.digests = digests_under(secret)
        service.snapshots = Snapshots(
            folder, index, journal=feed.journal, neighbour=_neighbour(config)
        )
    return service


def _new_front(config: FleetConfig) -> Service:
    """Make the service of a front, which has the pods of a configuration and no index of them."""
    front = Front(config.shared, config.shared.shard_key or config.server.token)
    return Service(
        front,
        NoFeed(front.close),
        limits=config.limits,
        picking=Picking(front, config.routing, console=config.console),
        in_force=InForce(config),
    )


def beside(config: FleetConfig, path: str | None) -> Path | None:
    """Return a path of a configuration: a relative one is relative to its file."""
    if path is None:
        return None
    return (config.path.parent if config.path is not None else Path()) / path


def _neighbour(config: FleetConfig) -> Neighbour | None:
    options = config.index
    if options.neighbour is None:
        return None
    return Neighbour(options.neighbour, key=options.neighbour_key or config.server.token)


def index_options(config: FleetConfig) -> IndexOptions:
    """Return the options of the index that a configuration asks for."""
    return IndexOptions(
        keys=config.index.keys,
        memory_limit_bytes=config.index.memory_limit_bytes,
        limbo_limit_bytes=config.index.limbo_limit_bytes,
        promise_limit_bytes=config.index.promise_limit_bytes,
        seen_limit_bytes=config.index.seen_limit_bytes,
        tier_weights=config.index.tier_weights.by_tier(),
        canonical_block_size=config.index.canonical_block_size,
        max_ranks=min(config.limits.pods, MOST_RANKS),
    )
