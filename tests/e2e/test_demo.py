"""`kvbraid demo` as a newcomer runs it: real processes, real sockets, a verdict at the end."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

DEMO = "import sys; from kvbraid.cli import main; sys.exit(main())"


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DEMO, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_demo_ends_by_itself_with_every_settled_prediction_exact() -> None:
    demo = start(["--requests", "100"])
    out, err = demo.communicate(timeout=50)
    assert demo.returncode == 0, err
    assert err == ""
    verdict = json.loads(out.splitlines()[-1])
    assert out.endswith("}\n")
    assert verdict["requests"] == 100
    assert verdict["wrong"] == 0
    assert verdict["exact"] >= 80
    assert verdict["pods"] == 4
    assert verdict["messages"] > 100


def test_with_serve_it_stays_until_a_signal_and_leaves_no_process() -> None:
    demo = start(["--requests", "10", "--serve"])
    assert demo.stdout is not None
    said = ""
    while "curl" not in said:
        line = demo.stdout.readline()
        assert line, demo.communicate()
        said += line
    demo.send_signal(signal.SIGTERM)
    out, err = demo.communicate(timeout=20)  # Children hold no pipe of ours: this would hang.
    assert demo.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["wrong"] == 0
