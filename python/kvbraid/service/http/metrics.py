"""Prometheus metrics of one running service, collected when they are asked for.

Nothing is counted twice: pods, messages, placements and refusals are read from the index's own
rows, and picks from their router. Only the latency of score calls and the answered requests are
counted here.
"""

import platform
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kvbraid import __version__
from kvbraid.ids import PodId, PodState
from kvbraid.service.http.access import Access
from kvbraid.service.http.connection_limits import ConnectionLimits
from kvbraid.service.registry import Service

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BUCKETS_S: Final = (
    25e-6, 50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.6e-3, 3.2e-3, 6.4e-3, 12.8e-3, 0.1, 1.0,
)  # fmt: skip


class LatencyHistogram:
    """Counts of durations per bucket; any thread counts, any thread reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration. Scores are answered by the event loop and by worker threads."""
        bucket = bisect_left(_BUCKETS_S, seconds)
        with self._lock:  # Adding reads and then writes: another thread may come in between.
            self._counts[bucket] += 1
            self._sum_s += seconds

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """Return the cumulative form that Prometheus reads."""
        bounds = [*map(str, _BUCKETS_S), "+Inf"]
        with self._lock:
            counts, sum_s = self._counts.copy(), self._sum_s
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=sum_s)


class RequestCounts:
    """Counts of answered requests by route and status; counted on the event loop's thread only."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)

    def of(self, method: str, path: str) -> Counter[int]:
        """Return the counts of one route by status, to be incremented."""
        return self._counts[method, path]

    def family(self) -> CounterMetricFamily:
        """Return what has been counted so far; from any thread."""
        found = CounterMetricFamily(
            "kvbraid_http_requests",
            "Requests answered, by route and status; route other: no route.",
            labels=["method", "route", "status"],
        )
        for (method, path), counts in list(self._counts.items()):
            for status, count in list(counts.items()):
                found.add_metric([method, path, str(status)], count)
        return found


def _counter(
    name: str,
    text: str,
    labels: list[str],
    counts: Mapping[str, int] | Mapping[tuple[str, str], int] | Mapping[tuple[str, str, str], int],
) -> CounterMetricFamily:
    """Return counts by the values of their labels; another thread may be counting."""
    family = CounterMetricFamily(name, text, labels=labels)
    for key, count in dict(counts).items():
        family.add_metric([key] if isinstance(key, str) else list(key), count)
    return family


class Metrics(Collector):
    """Collects one service; `render` gives the text of GET /metrics.

    `requests` is counted by those who answer.
    """

    def __init__(
        self, service: Service, connection_limits: ConnectionLimits, access: Access
    ) -> None:
        self._connection_limits = connection_limits
        self._access = access
        self.score_latency = LatencyHistogram()
        self.requests = RequestCounts()
        self._service = service
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def add(self, collector: Collector) -> None:
        """Render what this one collects, too."""
        self._registry.register(collector)

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Promise nothing in advance, so registering does not collect."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield every family, read from the service now; docs/operate.md lists them."""
        build = GaugeMetricFamily("kvbraid_build_info", "Always 1.", labels=["version", "python"])
        build.add_metric([__version__, platform.python_version()], 1)
        yield build
        yield from self._of_ranks()
        yield from self._of_the_service()
        yield from self._of_the_configuration()
        yield from self._of_picks()
        yield self.requests.family()
        yield self.score_latency.family(
            "kvbraid_score_seconds", "Time from a read body to its answer."
        )

    def _of_ranks(self) -> Iterable[Metric]:
        rank = ["pod", "dp_rank"]
        state = GaugeMetricFamily("kvbraid_pod_state", "1 = current.", labels=[*rank, "state"])
        publishes = GaugeMetricFamily(
            "kvbraid_pod_publishes", "1 = events are expected; 0 = a pod without.", labels=rank
        )
        messages = CounterMetricFamily("kvbraid_messages", "Batches applied.", labels=rank)
        placed = GaugeMetricFamily(
            "kvbraid_placed", "Entries placed, by means.", labels=[*rank, "means"]
        )
        refused = CounterMetricFamily(
            "kvbraid_refused", "Refused, by reason.", labels=[*rank, "reason"]
        )
        running = GaugeMetricFamily(
            "kvbraid_running", "Requests that were picked and have not ended.", labels=rank
        )
        pods = self._service.pods
        for row in self._service.rows():
            labels = [row.pod, str(row.dp_rank)]
            config = pods.get(PodId(row.pod))  # None if it was removed meanwhile.
            if config is not None:
                publishes.add_metric(labels, float(config.endpoint is not None))
            running.add_metric(labels, row.running)
            for member in PodState:
                state.add_metric([*labels, member.value], float(member is row.state))
            messages.add_metric(labels, row.messages)
            for means, count in row.placed.items():
                placed.add_metric([*labels, means], count)
            for reason, count in row.refused.items():
                refused.add_metric([*labels, reason], count)
        return state, publishes, messages, placed, refused, running

    def _of_the_configuration(self) -> Iterable[Metric]:
        in_force = self._service.in_force
        yield _counter(
            "kvbraid_config_reloads", "Files that were taken or refused, by outcome.",
            ["outcome"], in_force.reloads,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "kvbraid_config_ok", "0 = the last file was refused.", value=in_force.refused is None
        )
        yield GaugeMetricFamily(
            "kvbraid_config_since_seconds",
            "When what counts began to count, since 1970.",
            value=in_force.since,
        )
        yield GaugeMetricFamily(
            "kvbraid_config_waiting",
            "Keys of the file that count at the next start.",
            value=len(in_force.waiting),
        )
        used = GaugeMetricFamily(
            "kvbraid_key_last_used_seconds", "When a key was last used.", labels=["key"]
        )
        for row in self._access.rows():
            used.add_metric([row.name], row.last_used or 0)
        yield used

    def _of_picks(self) -> Iterable[Metric]:
        picking = self._service.picking
        yield GaugeMetricFamily(
            "kvbraid_bookings", "Requests in flight, on all pods.", value=picking.num_booked()
        )
        yield GaugeMetricFamily(
            "kvbraid_promises",
            "Prompts that count as cached soon.",
            value=self._service.index.num_promised(),
        )
        yield from (
            _counter("kvbraid_picks", "Picks, by knowledge.", ["knowledge"], picking.picks),
            _counter(
                "kvbraid_pick_filters", "Picks that a filter changed, or would have left nobody.",
                ["filter", "effect"], picking.filters,
            ),
            _counter(
                "kvbraid_pick_reports", "Reports, by event and status.",
                ["event", "status"], picking.reports,
            ),
            _counter(
                "kvbraid_pick_bookings", "What else happened to bookings.",
                ["what"], picking.counts(),
            ),
            _counter(
                "kvbraid_pick_tokens", "Tokens of prompts whose reuse was reported.",
                ["tokens"], picking.tokens,
            ),
        )  # fmt: skip
        requests, tokens, gaps = picking.ladder.sums()
        yield from (
            _counter(
                "kvbraid_ladder_requests", "Requests that have ended, by what became of them.",
                ["model", "what"], requests,
            ),
            _counter(
                "kvbraid_ladder_tokens", "Rungs, from prompts to what was delivered.",
                ["model", "rung"], tokens,
            ),
            _counter(
                "kvbraid_ladder_gap_tokens", "Tokens between two rungs, by reason.",
                ["model", "gap", "reason"], gaps,
            ),
        )  # fmt: skip

    def _of_snapshots(self) -> Iterable[Metric]:
        snapshots = self._service.snapshots
        counts, ages_s = (snapshots.counts, snapshots.ages_s()) if snapshots else ({}, {})
        yield _counter(
            "kvbraid_snapshots", "Files of pods, by what became of them.", ["what"], counts
        )
        age = GaugeMetricFamily(
            "kvbraid_snapshot_age_seconds", "Since a pod's file was written.", labels=["pod"]
        )
        for pod, seconds in ages_s.items():
            age.add_metric([pod], seconds)
        yield age

    def _of_replicas(self) -> Iterable[Metric]:
        shared, ages_s = self._service.shared, self._service.picking.replica_ages_s()
        yield GaugeMetricFamily(
            "kvbraid_shared_ok",
            "0 = what other replicas book is not known; 1 also where nothing is shared.",
            value=shared is None or not shared.problem,
        )
        yield GaugeMetricFamily(
            "kvbraid_shared_replicas", "Other replicas whose bookings count.", value=len(ages_s)
        )
        yield GaugeMetricFamily(
            "kvbraid_shared_age_seconds",
            "Since the replica spoke that was silent for longest.",
            value=max(ages_s.values(), default=0),
        )
        yield from (
            _counter(
                "kvbraid_shared_messages", "Messages of other replicas, by what became of them.",
                ["heard"], shared.heard if shared else {},
            ),
            _counter(
                "kvbraid_shared_server", "What happened between here and their server.",
                ["what"], shared.server.counts if shared else {},
            ),
        )  # fmt: skip

    def _of_shards(self) -> Iterable[Metric]:
        front = self._service.front
        links = front.links if front is not None else {}
        up = GaugeMetricFamily(
            "kvbraid_shard_up", "1 = the shard is connected, and not late.", labels=["shard"]
        )
        for number, link in links.items():
            up.add_metric([str(number)], not link.problem)
        yield up
        counts = {
            (str(number), what): count
            for number, counts in (front.counts if front is not None else {}).items()
            for what, count in counts.items()
        }
        yield _counter(
            "kvbraid_shard_questions", "Questions to shards, by what became of them.",
            ["shard", "outcome"], counts,
        )  # fmt: skip

    def _of_the_log(self) -> Iterable[Metric]:
        log = self._service.log
        yield GaugeMetricFamily(
            "kvbraid_log_ok",
            "0 = the log of events is not reached; 1 also where there is none.",
            value=log is None or not log.problem,
        )
        yield GaugeMetricFamily(
            "kvbraid_log_waiting_bytes",
            "Bytes of batches that wait to be applied, or to be stored.",
            value=log.waiting_bytes if log else 0,
        )
        yield from (
            _counter(
                "kvbraid_log_batches", "Batches of the log of events, by what became of them.",
                ["what"], log.counts if log else {},
            ),
            _counter(
                "kvbraid_log_server", "What happened between here and the server of the log.",
                ["what"], log.server.counts if log else {},
            ),
        )  # fmt: skip

    def _of_the_service(self) -> Iterable[Metric]:
        strays = CounterMetricFamily(
            "kvbraid_stray_messages", "Messages of no registered pod.", labels=["reason"]
        )
        for reason, count in self._service.feed.strays().items():
            strays.add_metric([reason], count)
        unheard = CounterMetricFamily(
            "kvbraid_http_refused",
            "Requests and connections refused or given up before any route, by reason.",
            labels=["reason"],
        )
        for reason, count in list(self._connection_limits.refused.items()):
            unheard.add_metric([reason], count)
        yield from (
            strays,
            _counter(
                "kvbraid_event_sources", "Questions to pods where they publish, by outcome.",
                ["outcome"], self._service.asked,
            ),
            _counter(
                "kvbraid_spans", "Spans of decisions by what became of them.",
                ["outcome"], self._service.picking.num_spans,
            ),
            _counter(
                "kvbraid_kubernetes", "Answers of API servers and what was left out, by outcome.",
                ["outcome"], self._service.watched,
            ),
            unheard,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "kvbraid_http_bodies_bytes",
            "Bytes of request bodies that are arriving or being answered.",
            value=self._connection_limits.held_bytes,
        )
        yield from self._of_snapshots()
        yield from self._of_replicas()
        yield from self._of_shards()
        yield from self._of_the_log()
        yield GaugeMetricFamily(
            "kvbraid_memory_bytes",
            "Bytes that the index accounts for.",
            value=self._service.index.memory_bytes(),
        )
        limit = self._service.index.memory_limit_bytes
        yield GaugeMetricFamily(
            "kvbraid_memory_limit_bytes",
            "What the index may account for; +Inf: no limit.",
            value=inf if limit is None else limit,
        )
