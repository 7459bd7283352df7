"""Prometheus metrics of the gateway, beside those of its service."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

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
        resting = GaugeMetricFamily(
            "kvbraid_gateway_resting", "1 = the pod has failed and is left alone.", labels=["pod"]
        )
        for pod in sorted(proxy.fleet.resting):
            resting.add_metric([pod], 1)
        yield resting
        yield CounterMetricFamily(
            "kvbraid_gateway_retries", "Times that a request went to a pod again.", counts.retries
        )
        yield from (
            _counter("requests", "Requests, by how they ended.", "outcome", counts.outcomes),
            _counter("pod_failures", "Failures of pods, by kind.", "failure", counts.failures),
            _counter(
                "unknown_prompts", "Prompts without tokens, by reason.", "reason", counts.unknown
            ),
            _counter("usage", "Answers, by what they say of reuse.", "said", counts.usage),
            _counter(
                "queued",
                "Requests that had to wait, by outcome.",
                "outcome",
                queue.outcomes,
            ),
            _counter(
                "polls", "Polls of pods' metrics, by outcome.", "outcome", self._poller.polls
            ),
            *self._engines(),
        )

    def _engines(self) -> Iterable[Metric]:
        """Yield what engines say of their load; old readings are left out."""
        loads = sorted(self._picking.engine_loads().items())
        for field, text in _OF_ENGINES.items():
            name = f"kvbraid_gateway_engine_{field}"
            family = GaugeMetricFamily(name, text, labels=["pod", "dp_rank"])
            for (pod, dp_rank), load in loads:
                family.add_metric([pod, str(dp_rank)], getattr(load, field))
            yield family


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    """Return counts by one label; the event loop may be counting."""
    family = CounterMetricFamily(f"kvbraid_gateway_{name}", text, labels=[label])
    for value, count in dict(counts).items():
        family.add_metric([value], count)
    return family
