"""`kvbraid pick-serve`: the real index, feeds and picker put together and run."""

import gc
from collections.abc import Callable

from kvbraid.gateway.envoy.metrics import EnvoyMetrics
from kvbraid.gateway.envoy.picker import Picker
from kvbraid.gateway.envoy.server import PickServer
from kvbraid.gateway.prompts import PromptReader, token_ids_of
from kvbraid.gateway.route import Adapters, reader_of
from kvbraid.service.config import FleetConfig
from kvbraid.service.http.access import Access
from kvbraid.service.http.app import Application
from kvbraid.service.http.server import END_S, end_process, run_server
from kvbraid.service.registry import Service
from kvbraid.service.serve import new_service


class PickApplication(Application):
    """The application of a service that also answers Envoy, on a port of its own."""

    def __init__(
        self, service: Service, reader: PromptReader, config: FleetConfig, access: Access
    ) -> None:
        super().__init__(service, access=access, token_ids=token_ids_of(reader))
        self._reader = reader
        self.picker = Picker(service, reader, config)
        self.grpc = PickServer(
            service, self.picker, config, access=access, limits=self.connection_limits
        )
        self.metrics.add(EnvoyMetrics(self.picker, self.grpc))

    async def start(self) -> None:
        """Listen for gRPC."""
        await self.grpc.start()

    def sweep(self, now: float) -> None:
        """Look after what waits too long."""
        self.picker.sweep(now)

    async def close(self) -> None:
        """Let streams end."""
        await self.grpc.close(END_S)
        await self._reader.close()


def pick_serve(config: FleetConfig, *, announce: Callable[[str, str], None]) -> None:
    """Answer until SIGTERM or SIGINT; may end the process itself, with 0.

    `announce` is called with the URL and with the address for gRPC.

    Raises as `run_server`, and InvalidValueError for a model's files that are missing or wrong, or
    an address that cannot be listened on.
    """
    service = new_service(config)
    reader = reader_of(config, Adapters(service))
    apps: list[PickApplication] = []

    def application(service: Service, access: Access) -> PickApplication:
        apps.append(PickApplication(service, reader, config, access))
        gc.freeze()  # What is there now stays: no collection has to look at it again.
        return apps[0]

    run_server(
        config,
        service,
        announce=lambda url: announce(url, apps[0].grpc.address),
        application=application,
    )
    end_process()
