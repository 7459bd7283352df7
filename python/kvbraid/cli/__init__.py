"""The `kvbraid` command. Each subcommand imports what it needs, calls one function, and prints.

Exit status: 0 done, 1 a check failed, 2 wrong usage, bad input or an unreachable server (one line
on stderr that ends with the remedy).

In reading order:

    options   what commands have in common
    models    `kvbraid model` and `kvbraid plan`
    cache     `kvbraid cache`
    config    `kvbraid check-config` and `kvbraid new-key`
    fleet     `kvbraid fleet`
    recovery  `kvbraid recover`
    servers   `kvbraid serve`, `kvbraid route`, `kvbraid pick-serve` and `kvbraid relay`
    tier      `kvbraid tier`

The other commands are here.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kvbraid import __version__
from kvbraid.cli.cache import cache
from kvbraid.cli.config import check_config, new_key
from kvbraid.cli.fleet import fleet
from kvbraid.cli.models import model, plan
from kvbraid.cli.options import SETTING, TEXT, Command, Secret
from kvbraid.cli.recovery import recover
from kvbraid.cli.servers import pick_serve, relay, route, serve
from kvbraid.cli.tier import tier
from kvbraid.errors import KvbraidError, one_line

_USAGE: Final = 2
_DEFAULT_URL: Final = "http://127.0.0.1:8090"
_PERIOD_S: Final = 2.0
_Answer = TypeVar("_Answer")


def main() -> None:
    """Run the command line and exit."""
    try:
        cli()
    except KvbraidError as error:
        _fail(_told(error))
    except OSError as error:
        if error.filename is not None:  # Every file that is read or written has its own message.
            raise
        # Discard the rest of the buffer; otherwise Python would try to write it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the output cannot be written: {error.strerror}; write it elsewhere")


def _told(error: KvbraidError) -> str:
    remedy = getattr(error, "remedy", None)
    return f"{error}" + (f"; {remedy}" if remedy else "")


def _fail(*messages: str) -> None:
    for message in messages:
        click.echo(f"kvbraid: {one_line(message)}", err=True)
    sys.exit(_USAGE)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvbraid")
def cli() -> None:
    """Tell how many tokens of a request each engine of a fleet can reuse."""


cli.add_command(cache)
cli.add_command(check_config)
cli.add_command(fleet)
cli.add_command(model)
cli.add_command(new_key)
cli.add_command(pick_serve)
cli.add_command(plan)
cli.add_command(recover)
cli.add_command(relay)
cli.add_command(route)
cli.add_command(serve)
cli.add_command(tier)

_url = click.option(
    "--url", type=TEXT, envvar="KVBRAID_URL", default=_DEFAULT_URL, show_default=True,
    help="Base URL of a running server.",
)  # fmt: skip
_token = click.option(
    "--token", type=TEXT, cls=Secret, envvar="KVBRAID_TOKEN", help="Bearer token of the server."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON line.")


_PROMPT: Final = (
    click.argument("tokens", default="-"),
    click.option(
        "--model", type=TEXT,
        help="Model that the pods serve; needed unless TOKENS is a whole request.",
    ),
    click.option("--lora", type=TEXT, help="LoRA adapter of the request."),
    click.option("--cache-salt", type=TEXT, help="Cache salt of the request."),
    click.option(
        "--pod", "pods", type=TEXT, multiple=True, help="Ask only this pod; may be repeated."
    ),
    click.option(
        "--raw", is_flag=True, help="Read TOKENS as raw uint32, even if it looks like text."
    ),
)  # fmt: skip
_TIERS: Final = click.option(
    "--tier", "tiers", multiple=True, type=click.Choice(["gpu", "cpu", "storage"]),
    help="Count only this tier; may be repeated.",
)  # fmt: skip


def _request(*more: Command) -> Callable[[Command], Command]:
    """Add the options that make a request."""

    def add(command: Command) -> Command:
        for option in (*_PROMPT, *more):
            command = option(command)
        return command

    return add


@cli.command()
@_request(_TIERS)
@click.option(
    "--strategy", type=click.Choice(["exact", "weighted_blocks"]),
    help="How `score` is computed.  [default: exact]",
)  # fmt: skip
@_token
@_json
@_url
def score(
    tokens: str,
    url: str,
    *,
    token: str | None,
    as_json: bool,
    raw: bool,
    **query: Any,  # noqa: ANN401
) -> None:
    """Show how much of TOKENS each pod can reuse.

    TOKENS is a file, or - for stdin: a JSON list, raw uint32, or the body of POST /v1/score, of
    which options replace fields. The engine makes token ids from text (docs/tokens.md).
    """
    from kvbraid.report.answers import show_scores
    from kvbraid.service.http.client import Client, read_request, to_json

    with Client(url, token=token) as client:
        answer = client.score(*read_request(tokens, query, raw=raw))
    _print(answer, to_json if as_json else None, show_scores)


@cli.command()
@_request(_TIERS)
@_token
@_json
@_url
def explain(
    tokens: str,
    url: str,
    *,
    token: str | None,
    as_json: bool,
    raw: bool,
    **query: Any,  # noqa: ANN401
) -> None:
    """Draw which blocks of TOKENS each pod and group holds.

    It also says which group ends the prefix. TOKENS is what `kvbraid score` takes.
    """
    from kvbraid.report.answers import show_explanation
    from kvbraid.service.http.client import Client, read_request, to_json

    with Client(url, token=token) as client:
        answer = client.explain(*read_request(tokens, query, raw=raw))
    _print(answer, to_json if as_json else None, show_explanation)


@cli.command()
@_request(
    click.option("--session", type=TEXT, help="Session of the request."),
    click.option(
        "--priority",
        type=int,
        help="As in vLLM: requests of a larger number do not delay it.  [default: 0]",
    ),
)
@_token
@_json
@_url
def pick(
    tokens: str,
    url: str,
    *,
    token: str | None,
    as_json: bool,
    raw: bool,
    pods: tuple[str, ...],
    **query: Any,  # noqa: ANN401
) -> None:
    """Show which rank would get TOKENS, and what each would cost.

    A pick books the request. This one is reported as failed at once, so nothing stays booked.
    TOKENS is what `kvbraid score` takes, or the body of POST /v1/pick.
    """
    from kvbraid.report.answers import show_pick
    from kvbraid.service.http.client import Client, in_query, read_request, to_json
    from kvbraid.service.requests import PickBody

    query |= {"candidates": in_query("candidates", list(pods) or None)}
    query |= {"priority": in_query("priority", query["priority"]), "explain": "true"}
    request = read_request(tokens, query, raw=raw, kind=PickBody)
    with Client(url, token=token) as client:
        answer = client.pick(*request)
        client.picked(answer.pick, "failed")
    _print(answer, to_json if as_json else None, show_pick)


@cli.command()
@_token
@_json
@_url
def pods(url: str, *, token: str | None, as_json: bool) -> None:
    """List the registered pods with state, progress and refusals."""
    from kvbraid.report.answers import show_pods
    from kvbraid.service.http.client import Client, to_json

    with Client(url, token=token) as client:
        answer = client.pods()
    _print(answer, to_json if as_json else None, show_pods)


@cli.command()
@click.option("--watch", is_flag=True, help="Ask again every 2 seconds, until Ctrl-C.")
@_token
@_json
@_url
def ladder(url: str, *, token: str | None, watch: bool, as_json: bool) -> None:
    """Show how much of all prompts was reused, and why not more.

    It leads from the prompts over what was seen before, what the best and the chosen pods were
    expected to reuse, to what was delivered, in tokens since the server's start. It counts
    requests that were picked and whose end was reported.
    """
    from kvbraid.report.ladder import show_ladder
    from kvbraid.service.http.client import Client, to_json

    with Client(url, token=token) as client:
        for answer in _again(client.ladder, forever=watch):
            if watch and not as_json:
                click.clear()
            _print(answer, to_json if as_json else None, show_ladder)


@cli.command()
@click.argument("pod", nargs=-1, type=TEXT)
@click.option(
    "--endpoint", type=TEXT, help="Listen to this ZeroMQ endpoint instead of a server's pods."
)
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@_token
@_url
def tail(
    pod: tuple[str, ...], *, endpoint: str | None, count: int | None, token: str | None, url: str
) -> None:
    """Show live events of a server's pods or of one endpoint.

    Without PODs it shows all of the server's. It goes on until Ctrl-C.
    """
    from itertools import islice

    from kvbraid.report.events import event_lines
    from kvbraid.service.feeds.tail import source_of, sources_of
    from kvbraid.service.feeds.tail import tail as listen
    from kvbraid.service.http.client import Client

    if endpoint is None:
        with Client(url, token=token) as client:
            sources = sources_of(client.pods(), pod)
    else:
        sources = [source_of(endpoint)]
    click.echo(f"listening to {', '.join(s.endpoint for s in sources)}", err=True)
    try:
        for published in islice(listen(sources), count):
            for line in event_lines(*published):
                click.echo(line)
    except KeyboardInterrupt:
        return


@cli.command()
@click.argument("captures", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--keys",
    type=click.Choice(["auto", "join"]),
    default="auto",
    show_default=True,
    help="How hashes get their places; join = without the engine's hash function.",
)
@click.option(
    "--model",
    "presence",
    type=click.Choice(["count", "set", "full-only"]),
    default="count",
    show_default=True,
    help="How presence is modelled; set and full-only are common shortcuts.",
)
@click.option(
    "--report-mode",
    type=click.Choice(["incremental", "full"]),
    default="incremental",
    show_default=True,
    help="full = the engine announces reused blocks again, without a new copy.",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=JSON",
    type=SETTING,
    multiple=True,
    help="Replace a field of the captures' topology; may be repeated.",
)
@click.option("--routed", is_flag=True, help="Tell the index which requests the engine got.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per capture.")
@click.option(
    "--fail-under", type=float, help="Exit with 1 if fewer percent of all requests are exact."
)
def replay(
    captures: tuple[Path, ...],
    *,
    settings: tuple[tuple[str, object], ...],
    report_mode: str,
    as_json: bool,
    fail_under: float | None,
    **how: Any,  # noqa: ANN401 - the fields of ReplayOptions
) -> None:
    """Predict recorded requests and compare with what was reused.

    CAPTURES are folders with config.json, events.bin and requests.jsonl, of vLLM or SGLang.
    `exact` counts the requests with lower = upper = what was reused, and `%` is their share of all
    that were asked. `excused` counts those of the others that no reader of events can know: the
    engine had emptied its cache, or changed it, and had not published it yet. `expected` counts
    the requests whose expected value is the truth; `width` is the mean of upper - lower, in
    tokens. `promised` and `reused` are the sums of lower and of what was reused, in tokens.

    A folder that is refused is named at the end, with status 2; the others are replayed.
    """
    from kvbraid.report.replay import run_replays
    from kvbraid.sim.captures.replay import ReplayOptions

    options = ReplayOptions(full_reports=report_mode == "full", **how)
    reports, refused = run_replays(captures, options, settings=dict(settings), as_json=as_json)
    if refused:
        _fail(*map(_told, refused))
    if fail_under is not None and any(r.exact_pct < fail_under for r in reports):
        sys.exit(1)


@cli.command()
@click.option(
    "--serve", "keep", is_flag=True, help="Go on afterwards, with slow traffic, until Ctrl-C."
)
@click.option("--requests", type=click.IntRange(1), default=200, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def demo(*, keep: bool, requests: int, seed: int) -> None:
    """Follow four simulated engines and check every prediction.

    It ends with status 1 if one is wrong.
    """
    from kvbraid.report.demo import watch
    from kvbraid.sim.fleet.demo import run_demo

    sys.exit(run_demo(serve=keep, requests=requests, seed=seed, watch=watch))


def _again(ask: Callable[[], _Answer], *, forever: bool) -> Iterator[_Answer]:
    """Ask once or until Ctrl-C."""
    yield ask()
    try:
        while forever:
            time.sleep(_PERIOD_S)
            yield ask()
    except KeyboardInterrupt:
        return


def _print(answer: Any, as_json: Callable[[Any], str] | None, show: Command) -> None:  # noqa: ANN401
    if as_json is not None:
        click.echo(as_json(answer))
        return
    from kvbraid.report.console import stdout

    show(stdout(), answer)
