"""`kvbraid demo` as a newcomer runs it: real processes, real sockets, a verdict at the end."""

import json
import re
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


def test_the_demo_ends_by_itself_with_every_judged_prediction_exact() -> None:
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


def run(*arguments: str) -> str:
    """Run another command, as a newcomer does in a second terminal."""
    command = [sys.executable, "-m", "kvbraid", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=True).stdout


def test_with_serve_traffic_goes_on_until_a_signal_and_no_process_is_left() -> None:
    demo = start(["--requests", "10", "--serve"])
    assert demo.stdout is not None
    said = ""
    while "curl" not in said:
        line = demo.stdout.readline()
        assert line, demo.communicate()
        said += line
    assert "predictions exact, 0 wrong" in said
    url, request = re.search(r"KVBRAID_URL=(\S+)", said), re.search(r"kvbraid score (\S+)", said)
    assert url is not None
    assert request is not None
    seen = ("--url", url[1])
    events = run("tail", "--count", "3", *seen).splitlines()
    assert len(events) >= 3, "what is published now, not before"
    assert all("stored" in line or "removed" in line for line in events)
    assert "tokens" in run("score", request[1], *seen)
    rows = json.loads(run("score", "--json", request[1], *seen))["pods"]
    assert any(row["present"] > row["upper"] for row in rows), rows
    assert "a boundary that the group accepts" in run("explain", request[1], *seen)
    demo.send_signal(signal.SIGTERM)
    out, err = demo.communicate(timeout=20)  # Children hold no pipe of ours: this would hang.
    assert demo.returncode == 0, err
    verdict = json.loads(out.splitlines()[-1])
    assert verdict["wrong"] == 0
    assert verdict["requests"] > 10
