"""What a table of fleet.toml asks the API server for: slices, pods, or the pods of a pool.

Invariant: a pool is read anew for each watch, so a selector that changes there counts after one
watch at the latest. Everything else stands in the table.
"""

from kvbraid.service.config import KubernetesEntry
from kvbraid.service.kubernetes.api_server import ApiServer, ApiSource
from kvbraid.service.kubernetes.endpoint_slices import read_slice
from kvbraid.service.kubernetes.inference_pool import read_pool
from kvbraid.service.kubernetes.labelled_pods import read_pod
from kvbraid.service.kubernetes.objects import WantedPorts


def source_of(entry: KubernetesEntry, server: ApiServer) -> ApiSource:
    """Return what a table asks for.

    Raises:
        NoAnswerError: Its pool cannot be read.
    """
    ports = (entry.port, entry.events_port, entry.replay_port)
    wanted = WantedPorts(frozenset(port for port in ports if isinstance(port, str)))
    space = f"namespaces/{server.namespace}"
    pods = f"/api/v1/{space}/pods"
    if entry.pool is not None:
        kind = f"/apis/inference.networking.k8s.io/v1/{space}/inferencepools"
        pool = read_pool(server.read_one(f"{kind}/{entry.pool}"))
        return ApiSource(pods, pool.selector, wanted._replace(targets=pool.target_ports), read_pod)
    if entry.pods is not None:
        return ApiSource(pods, entry.pods, wanted, read_pod)
    slices = f"/apis/discovery.k8s.io/v1/{space}/endpointslices"
    selector = entry.selector or f"kubernetes.io/service-name={entry.service}"
    return ApiSource(slices, selector, wanted, read_slice)
