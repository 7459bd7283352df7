"""`python -m tests.soak_router --seconds 7200 --seed 1`: a long soak of `kvbraid route`.

It prints how far it is every ten seconds, then what was wrong, then one line of JSON. The exit
status is 1 if anything was wrong.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

import uvloop

from tests.soak_router.run import SoakOptions, soak


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_router")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exact-s", type=float, default=5.0)
    given = parser.parse_args(arguments)
    options = SoakOptions(seconds=given.seconds, seed=given.seed, exact_s=given.exact_s)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        findings = runner.run(soak(options))
    for words in findings.words:
        print(f"WRONG: {words}", file=sys.stderr)
    told = {"seconds": options.seconds, "seed": options.seed, **findings.line(options.warm_s)}
    print(json.dumps({"soak_router": told}))
    return 1 if findings.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
