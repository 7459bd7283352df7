"""Prometheus metrics of the gateway, beside those of its service."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvbraid.gateway.counts import GatewayCounts
from kvbraid.gateway.fleet import Fleet
from kvbraid.gateway.polling import LoadPoller
from kvbraid.gateway.proxy import Proxy
from kvbraid.service.picking import Picking

_OF_ENGINES: Final = {
    "running": "Requests in the steps of a rank, as its engine says.",
    "waiting": "Requests before them, as its engine says.",
    "usage": "Share of a rank's pool in use, as its engine says.",
}


class ProxyMetrics(Collector):
    """Collects what one gateway has counted; docs/gateway.md lists the families."""

    def __init__(self, proxy: Proxy, picking: Picking, poller: LoadPoller) -> None:
        self._proxy = proxy
        self._picking = picking
        self._poller = poller

    def describe(self) -> Iterable[Metric]:
        """Promise nothing in advance, so registering does not collect."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield every family, read from the proxy now."""
        proxy, counts, queue = self._proxy, self._proxy.counts, self._proxy.queue
        yield GaugeMetricFamily(
            "kvbraid_gateway_in_flight", "Requests being served.", value=proxy.in_flight
        )
        yield GaugeMetricFamily(
            "kvbraid_gateway_queue", "Requests that wait for room at a pod.", value=len(queue)
        )
        yield CounterMetricFamily(
            "kvbraid_gateway_retries", "Times that a request went to a pod again.", counts.retries
        )
        polls = self._poller.polls
        yield from (
            counter(
                "gateway_requests", "Requests, by how they ended.", "outcome", counts.outcomes,
            ),
            *of_pods(proxy.fleet, counts),
            counter(
                "gateway_queued", "Requests that had to wait, by outcome.", "outcome",
                queue.outcomes,
            ),
            counter("gateway_polls", "Polls of pods' metrics, by outcome.", "outcome", polls),
            *self._engines(),
            counter(
                "gateway_ends", "Lines of HAProxy about ends of requests.", "line", counts.ends,
            ),
        )  # fmt: skip

    def _engines(self) -> Iterable[Metric]:
        """Yield what engines say of their load; old readings are left out."""
        loads = sorted(self._picking.engine_loads().items())
        for field, text in _OF_ENGINES.items():
            name = f"kvbraid_gateway_engine_{field}"
            family = GaugeMetricFamily(name, text, labels=["pod", "dp_rank"])
            for (pod, dp_rank), load in loads:
                family.add_metric([pod, str(dp_rank)], getattr(load, field))
            yield family


def of_pods(fleet: Fleet, counts: GatewayCounts) -> Iterable[Metric]:
    """Yield what every data plane learns of pods and prompts."""
    resting = GaugeMetricFamily(
        "kvbraid_gateway_resting", "1 = the pod has failed and is left alone.", labels=["pod"]
    )
    for pod in sorted(fleet.resting):
        resting.add_metric([pod], 1)
    yield resting
    yield from (
        counter("gateway_pod_failures", "Failures of pods, by kind.", "failure", counts.failures),
        counter(
            "gateway_unknown_prompts", "Prompts without tokens, by reason.", "reason",
            counts.unknown,
        ),
        counter("gateway_usage", "Answers, by what they say of reuse.", "said", counts.usage),
    )  # fmt: skip


def counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    """Return counts by one label; the event loop may be counting."""
    family = CounterMetricFamily(f"kvbraid_{name}", text, labels=[label])
    for value, count in dict(counts).items():
        family.add_metric([value], count)
    return family
