"""Run a study: a long simulation, whose table and plot are committed. `make bench` runs none.

The command is `make study ONLY=policies`. After Ctrl-C, the same command continues where it was.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run the study that is asked for."""
    from bench.studies import (
        ablation,
        expected,
        fitting,
        future,
        future_traces,
        hints,
        joining,
        late,
        look_ahead,
        narrowing,
        pins,
        policies,
        routing,
        routing_page,
    )

    studies: dict[str, Callable[[policies.Study], int]] = {
        "policies": policies.run,
        "hints": hints.run,
        "future": future.run,
        "future_traces": future_traces.run,
        "late": late.run,
        "ablation": ablation.run,
        "narrowing": narrowing.run,
        "expected": expected.run,
        "look_ahead": look_ahead.run,
        "fitting": fitting.run,
        "pins": pins.run,
        "joining": joining.run,
        "routing": partial(routing.run, page=routing_page.page),
    }
    parser = argparse.ArgumentParser(prog="bench/studies/run.py")
    parser.add_argument("--only", choices=studies, required=True)
    parser.add_argument("--traces", type=Path, default=ROOT / "bench" / "studies" / "traces")
    parser.add_argument("--folder", type=Path, default=ROOT / "bench" / "studies")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--requests", type=int, help="only the first of each trace, to try it out")
    options = parser.parse_args()
    study = policies.Study(
        traces=options.traces,
        folder=options.folder,
        num_jobs=options.jobs,
        limit=options.requests,
    )
    try:
        return studies[options.only](study)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
