"""Commands that try out a fleet without engines."""

from pathlib import Path
from typing import Any

import click

from kvbraid.cli.options import TEXT, engine, taken
from kvbraid.errors import InvalidValueError


@click.group()
def fleet() -> None:
    """Try out a fleet without engines."""


@fleet.command()
@click.argument("traffic", required=False, type=click.Path(path_type=Path))
@click.option(
    "--workload", type=TEXT,
    help="Requests that are made up, instead of TRAFFIC: chat, shared, agents, docs or mixed.",
)  # fmt: skip
@click.option(
    "--pods", "num_pods", type=click.IntRange(1), default=8, show_default=True,
    help="Pods of the fleet.",
)  # fmt: skip
@click.option(
    "--policy", "policies", type=TEXT, multiple=True,
    help="Try only this routing policy; may be repeated.",
)  # fmt: skip
@click.option(
    "--model", type=TEXT, default="llama-3.1-8b", show_default=True,
    help="The name of a known model, or a config.json.",
)  # fmt: skip
@click.option(
    "--pool", type=float,
    help="The fleet's pools together, as a share of the working set.  [default: 1]",
)  # fmt: skip
@click.option("--memory", type=TEXT, help="Memory of a pod's cache on one rank, such as 40GiB.")
@click.option("--blocks", "num_blocks", type=click.IntRange(2), help="Blocks of a pod's cache.")
@click.option(
    "--load", type=float,
    help="Share of the pods' time that kvbraid's own policy needs.  [default: 0.8]",
)  # fmt: skip
@click.option("--rate", type=float, help="Requests a second.")
@click.option(
    "--users", type=click.IntRange(1), help="Users who wait for each answer, instead of a rate."
)
@click.option(
    "--think", "think_s", type=float, default=10.0, show_default=True,
    help="Seconds from an answer to the user's next request.",
)  # fmt: skip
@click.option(
    "--retention", type=TEXT, default="interval-0", show_default=True,
    help="Which windows and states pods keep, as in `kvbraid cache simulate --policy`.",
)  # fmt: skip
@click.option(
    "--delay", "delay_s", type=float, default=0.02, show_default=True,
    help="Seconds from the end of a prefill until its events are known.",
)  # fmt: skip
@click.option(
    "--loss", type=float, default=0.0, show_default=True,
    help="Share of the events' messages that get lost.",
)  # fmt: skip
@engine()
@click.option(
    "--tokenizer", type=click.Path(path_type=Path),
    help="The model's tokenizer.json, for prompts of text.",
)  # fmt: skip
@click.option(
    "--requests", "num_requests", type=click.IntRange(2), default=2_000, show_default=True,
    help="Play only this many requests from the start.",
)  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Of all that chance decides.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per result.")
def simulate(
    traffic: Path | None,
    *,
    workload: str | None,
    tokenizer: Path | None,
    num_requests: int,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - the fields of ComparisonOptions and EngineOptions
) -> None:
    """Play TRAFFIC against a fleet under routing policies and compare them.

    TRAFFIC is what `kvbraid cache simulate` takes. A policy that looks at caches is played twice:
    once it counts what it has sent and not heard of yet (`sent`), once it knows events alone.
    """
    from kvbraid.report.routing import run_comparison
    from kvbraid.sim.routing.comparison import Comparison, ComparisonOptions
    from kvbraid.sim.routing.workloads import Workload, made_up, recorded
    from kvbraid.sim.traffic import read_traffic

    asked = ComparisonOptions(engine=taken(options), **options)

    def read() -> Workload:
        if traffic is not None and workload is None:
            trace = read_traffic(traffic, tokenizer=tokenizer)
            return recorded(trace, num_requests=num_requests)
        if traffic is None and workload is not None:
            return made_up(workload, seed=asked.seed, num_requests=num_requests)
        both = "neither TRAFFIC nor --workload" if traffic is None else "TRAFFIC and --workload"
        raise InvalidValueError(f"{both}; give one of them, as --workload chat")

    run_comparison(Comparison.of(read, asked), as_json=as_json)
