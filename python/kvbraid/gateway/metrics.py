"""Prometheus metrics of the gateway, beside those of its service."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvbraid.gateway.proxy import Proxy


class ProxyMetrics(Collector):
    """Collects what one proxy has counted; docs/gateway.md lists the families."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def describe(self) -> Iterable[Metric]:
        """Promise nothing in advance, so registering does not collect."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield every family, read from the proxy now."""
        proxy, counts = self._proxy, self._proxy.counts
        yield GaugeMetricFamily(
            "kvbraid_gateway_in_flight", "Requests being served.", value=proxy.in_flight
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
        )


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    """Return counts by one label; the event loop may be counting."""
    family = CounterMetricFamily(f"kvbraid_gateway_{name}", text, labels=[label])
    for value, count in dict(counts).items():
        family.add_metric([value], count)
    return family
