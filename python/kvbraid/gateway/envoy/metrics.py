"""Prometheus metrics of the endpoint picker, beside those of its service."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvbraid.gateway.envoy.picker import Picker
from kvbraid.gateway.envoy.server import PickServer
from kvbraid.gateway.metrics import counter, of_pods


class EnvoyMetrics(Collector):
    """Collects what one picker and its server have counted; docs/envoy.md lists the families."""

    def __init__(self, picker: Picker, server: PickServer) -> None:
        self._picker = picker
        self._server = server

    def describe(self) -> Iterable[Metric]:
        """Promise nothing in advance, so registering does not collect."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield every family, read now."""
        picker, streams, log = self._picker, self._server.streams, self._server.log
        yield GaugeMetricFamily(
            "kvbraid_envoy_streams", "Streams that are open.", value=streams.num_open
        )
        yield from (
            counter("envoy_messages", "Messages of streams, by kind.", "kind", streams.messages),
            counter("envoy_answers", "Requests, by what was answered.", "answer", streams.answers),
            counter("envoy_hints", "Endpoints that were handed over.", "hint", picker.hints),
            counter("envoy_served", "Answers of pods, by who gave them.", "by", picker.served),
            counter("envoy_entries", "Entries of the access log.", "entry", log.entries),
        )
        yield from of_pods(picker.fleet, picker.counts)
