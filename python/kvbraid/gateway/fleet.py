"""The pods as a gateway sees them: where they are, whom a model's name means, who is left alone.

What follows from the registered pods is computed once for each change of them. The router decides
who gets a request; here is only said who cannot.
"""

from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from kvbraid.errors import counted, shortened
from kvbraid.gateway.breakers import Breakers
from kvbraid.ids import PodId
from kvbraid.policy.view import RankNames
from kvbraid.service.config import PodConfig
from kvbraid.service.errors import RefusalError
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.journal import Rank
from kvbraid.service.registry import Service


class PodAddress(NamedTuple):
    """Where a pod's requests go; `socket` is None if a host and a port do not say it all.

    `endpoint` is `IP:PORT`, with brackets around an IPv6; None if there is no socket, or its host
    has a name.
    """

    url: str
    num_ranks: int
    socket: tuple[str, int] | None
    endpoint: str | None

    @classmethod
    def of(cls, url: str, num_ranks: int) -> "PodAddress":
        """Take a URL apart. One with a path, or with TLS, is more than a host and a port."""
        parts = urlsplit(url)
        is_plain = parts.scheme == "http" and parts.path in {"", "/"}
        socket = (parts.hostname or "", parts.port or 80) if is_plain else None
        return cls(url.rstrip("/"), num_ranks, socket, _endpoint(*socket) if socket else None)


def _endpoint(host: str, port: int) -> str | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


class AllBut:
    """Every rank that is of none of these pods."""

    def __init__(self, pods: Collection[PodId], size: int) -> None:
        self._pods = pods
        self._size = size

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, tuple) and rank[0] not in self._pods

    def __len__(self) -> int:
        return self._size


class Fleet:
    """The registered pods of a service that have a URL, and how they have answered."""

    def __init__(self, service: Service, options: ForwardingOptions) -> None:
        self._service = service
        self._options = options
        self._breakers = Breakers(failures=options.failures, rest_s=options.rest_s)
        self._pods: Mapping[PodId, PodConfig] = {}
        self._targets: dict[PodId, PodAddress] = {}
        self._unreachable: frozenset[PodId] = frozenset()
        self._without_socket: frozenset[PodId] = frozenset()
        self._without_endpoint: frozenset[PodId] = frozenset()
        self._at: dict[str, list[PodId]] = {}
        self._of_model: dict[str, list[PodId]] = {}
        self._lacking: dict[str, frozenset[PodId]] = {}

    # ---- who there is ----------------------------------------------------------------------

    def find_model(self, name: str) -> tuple[str, str | None]:
        """Return the model and the adapter that a name means; an empty name means the only model.

        Raises:
            RefusalError: `unknown_model`, or `no_pod` if no pod of the model has a URL.
        """
        self._refresh()
        model, adapter = name, None
        if not name and len(self._of_model) == 1:
            model = next(iter(self._of_model))
        elif name in self._service.adapters:
            model, adapter = self._service.adapters[name], name
        if not model:
            told = counted(len(self._service.models), "model")
            remedy = "name it in the body, or in the header x-kvbraid-model"
            message = f"the request names no model, and pods serve {told}"
            raise RefusalError("unknown_model", message, remedy=remedy)
        if model not in self._service.models:
            raise RefusalError("unknown_model", f"no pod serves model {shortened(model)}")
        if model not in self._of_model:
            remedy = "set url in its [[pods]] of fleet.toml, or in PUT /v1/pods/{id}"
            message = f"no pod of model {shortened(model)} has a url"
            raise RefusalError("no_pod", message, remedy=remedy)
        return model, adapter

    def lacking(self, adapter: str | None) -> frozenset[PodId]:
        """Return the pods that do not list an adapter which others of its model list."""
        return self._lacking.get(adapter, frozenset()) if adapter else frozenset()

    def without_socket(self, model: str) -> frozenset[PodId]:
        """Return the pods whose URL is more than a host and a port.

        Raises:
            RefusalError: `no_pod`: no other pod of the model has a URL.
        """
        return self._unless_all(self._without_socket, model, "has https or a path", "HOST")

    def without_endpoint(self, model: str) -> frozenset[PodId]:
        """Return the pods whose URL is more than an IP address and a port.

        Raises:
            RefusalError: `no_pod`: no other pod of the model has a URL.
        """
        what = "has https, a path or a host's name"
        return self._unless_all(self._without_endpoint, model, what, "IP")

    def _unless_all(
        self, pods: frozenset[PodId], model: str, what: str, host: str
    ) -> frozenset[PodId]:
        if pods.issuperset(self._of_model.get(model, ())):
            remedy = f"give a pod a url http://{host}:PORT, or send requests through kvbraid route"
            message = f"every url of model {shortened(model)} {what}"
            raise RefusalError("no_pod", message, remedy=remedy)
        return pods

    def at(self, addresses: Iterable[str]) -> frozenset[PodId]:
        """Return the pods at addresses: `IP:PORT`, or an IP for all its ports."""
        self._refresh()
        return frozenset(pod for each in addresses for pod in self._at.get(each, ()))

    def all_but(self, pods: frozenset[PodId]) -> frozenset[PodId]:
        """Return the pods that are none of these."""
        return frozenset(self._pods.keys() - pods)

    def candidates(self, avoided: Collection[PodId]) -> RankNames | None:
        """Return the ranks that may get a request; None: all."""
        left_out = self._unreachable | set(avoided) if avoided else self._unreachable
        return AllBut(left_out, len(self._pods) - len(left_out)) if left_out else None

    def has_other(self, model: str, than: Collection[PodId]) -> bool:
        """Whether any other pod than these may get a request."""
        resting = self._breakers.resting
        pods = self._of_model.get(model, ())
        return any(pod not in than and pod not in resting for pod in pods)

    def target(self, pod: PodId) -> PodAddress | None:
        """Return where a pod is; None if it was removed meanwhile."""
        self._refresh()
        return self._targets.get(pod)

    def targets(self) -> Mapping[PodId, PodAddress]:
        """Return where each pod is that has a URL; never changed in place."""
        self._refresh()
        return self._targets

    def models(self) -> dict[str, str | None]:
        """Return every name that a request may give its model: adapters with the model's name."""
        self._refresh()
        return {**self._service.adapters, **dict.fromkeys(self._service.models)}

    def _refresh(self) -> None:
        pods = self._service.pods
        if pods is self._pods:
            return
        self._pods = pods
        self._targets = {
            pod: PodAddress.of(config.serving.url, config.dp_size)
            for pod, config in pods.items()
            if config.serving.url is not None
        }
        self._unreachable = frozenset(pods.keys() - self._targets.keys())
        self._without_socket = frozenset(
            pod for pod, address in self._targets.items() if address.socket is None
        )
        self._without_endpoint = frozenset(
            pod for pod, address in self._targets.items() if address.endpoint is None
        )
        self._at = {}
        for pod, address in self._targets.items():
            if address.endpoint is not None:
                self._at.setdefault(address.endpoint, []).append(pod)
                self._at.setdefault(address.endpoint.rpartition(":")[0], []).append(pod)
        self._of_model = {}
        for pod in self._targets:
            self._of_model.setdefault(pods[pod].model, []).append(pod)
        self._lacking = {
            name: frozenset(
                pod
                for pod, config in pods.items()
                if config.model == model and name not in config.loras
            )
            for name, model in self._service.adapters.items()
        }
        self._breakers.retain(pods)

    # ---- how they answer -------------------------------------------------------------------

    @property
    def resting(self) -> frozenset[PodId]:
        """The pods that get no request because they have failed."""
        return self._breakers.resting

    def note_answer(self, pod: PodId) -> None:
        """Note that a pod has answered."""
        self._breakers.succeed(pod)

    def note_failure(self, pod: PodId, why: str, *, now: float) -> None:
        """Note that a pod has not; it may be left alone from now on."""
        if self._breakers.fail(pod, now):
            self._service.picking.set_ready(pod, is_ready=False)
            told = f"{self._options.failures} failures in a row, the last: {why}"
            self._service.journal.note("resting", Rank(pod), told)

    def end_rests(self, now: float) -> None:
        """Give the pods a chance that have been left alone long enough."""
        for pod in self._breakers.rested(now):
            self._service.picking.set_ready(pod, is_ready=True)
            self._service.journal.note("on_trial", Rank(pod), "it gets requests again")
