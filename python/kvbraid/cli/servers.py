"""The commands that serve until a signal: `kvbraid serve`, `route`, `pick-serve`, `relay`."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from kvbraid.cli.options import TEXT, Command, Secret, require_extra

if TYPE_CHECKING:
    from kvbraid.service.config import FleetConfig

_Flag: TypeAlias = str | int | bool | tuple[str, ...] | None

_OPTIONS: Final = (
    click.option("--config", type=click.Path(path_type=Path), help="Configuration: a fleet.toml."),
    click.option("--host", type=TEXT, help="Address to listen on.  [default: 127.0.0.1]"),
    click.option(
        "--port", type=click.IntRange(0, 65535), help="Port; 0 = any free one.  [default: 8090]"
    ),
    click.option(
        "--token", type=TEXT, cls=Secret, envvar="KVBRAID_TOKEN",
        help="Bearer token that changes (PUT, DELETE, POST /v1/routed, pick and picked) need.",
    ),
    click.option(
        "--allow-registration", is_flag=True, default=None,
        help="Allow changes without a token on an address that others can reach.",
    ),
    click.option(
        "--allow-host", "allow_hosts", type=TEXT, multiple=True,
        help="Another host name that changes on 127.0.0.1 may use; may be repeated.",
    ),
    click.option(
        "--shard", type=TEXT,
        help="Index only the pods of this shard, as 2/3; replaces shared.shard and shards.",
    ),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
        help="Write lines of this level and above to stderr.  [default: info]",
    ),
    click.option(
        "--log-format", type=click.Choice(["text", "json"]),
        help="Write lines as text, or as an object of JSON each.  [default: text]",
    ),
)  # fmt: skip


def _server(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _configured(config: Path | None, flags: dict[str, _Flag]) -> "FleetConfig":
    from kvbraid.service.config import FleetConfig
    from kvbraid.service.fleet_file import override, read_fleet_file

    # One that comes before the server can be told is kept until then, and ends no process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    read = FleetConfig() if config is None else read_fleet_file(config)
    return override(read, flags)


@click.command()
@_server
def serve(config: Path | None, **flags: _Flag) -> None:
    """Follow engines and answer over HTTP, until SIGTERM or Ctrl-C."""
    from kvbraid.service.serve import serve

    serve(_configured(config, flags), announce=_announce)


@click.command()
@_server
def route(config: Path | None, **flags: _Flag) -> None:
    """Serve, and send requests of the OpenAI API to pods.

    It is `kvbraid serve` with a gateway (docs/gateway.md). Pods need their url in fleet.toml.
    """
    require_extra("route", "kvbraid route")
    from kvbraid.gateway.route import route

    route(_configured(config, flags), announce=_announce)


@click.command()
@_server
def relay(config: Path | None, **flags: _Flag) -> None:
    """Write what engines publish to a log of events, for replicas.

    It follows the pods of a fleet.toml whose shared.log names a stream (docs/replicas.md). Run one
    for each pod, beside the engines. What it answers over HTTP is how it goes, and of pods bounds.
    """
    require_extra("nats", "kvbraid relay")
    from kvbraid.service.relay import relay

    relay(_configured(config, flags), announce=_announce)


@click.command("pick-serve")
@_server
@click.option(
    "--grpc-port", type=click.IntRange(0, 65535),
    help="Port on which Envoy asks; 0 = any free one.  [default: 9002]",
)  # fmt: skip
def pick_serve(config: Path | None, **flags: _Flag) -> None:
    """Serve, and tell Envoy where requests go.

    It is `kvbraid serve` with the endpoint picker of the Gateway API Inference Extension
    (docs/envoy.md). Pods need their url in fleet.toml.
    """
    require_extra("envoy", "kvbraid pick-serve")
    from kvbraid.gateway.envoy.serve import pick_serve

    pick_serve(_configured(config, flags), announce=_announce)


def _announce(url: str, grpc: str | None = None) -> None:
    click.echo(f"listening on {url}")
    if grpc is not None:
        click.echo(f"picking on {grpc}")
