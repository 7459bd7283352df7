"""HAProxy asks the router where a request goes, and nobody tells of its end."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.docs.markdown import ROOT

SETTINGS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.1",
    "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_TIMEOUT_S": "30",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
}


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    {name for _, name in socket.if_nameindex()} != {"lo"}, reason="needs a network of its own"
)
def test_predictions_come_true_under_direct_streaming_and_bookings_end() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray.direct"],
        cwd=ROOT,
        env=os.environ | SETTINGS,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) > 1
    assert all(answer["reused"] == answer["expected"] for answer in answers)
    assert sum(answer["reused"] for answer in answers) > 0
    assert answers[-1]["booked"] < len(answers)
