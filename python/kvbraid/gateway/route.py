"""`kvbraid route`: the real index, subscriber and gateway put together and run."""

from collections.abc import Callable

from kvbraid.gateway.app import Gateway
from kvbraid.gateway.prompts import ListedTokens
from kvbraid.service.config import FleetConfig
from kvbraid.service.http.access import Access
from kvbraid.service.http.server import end_process, run_server
from kvbraid.service.registry import Service
from kvbraid.service.serve import new_service


def route(config: FleetConfig, *, announce: Callable[[str], None]) -> None:
    """Forward requests until SIGTERM or SIGINT; may end the process itself, with 0.

    Raises as `run_server`.
    """

    def gateway(service: Service, access: Access) -> Gateway:
        return Gateway(service, ListedTokens(), config.forwarding, access=access)

    run_server(
        config,
        new_service(config),
        announce=announce,
        application=gateway,
        end_s=config.forwarding.end_s,
    )
    end_process()
