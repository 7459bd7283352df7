"""deploy/systemd: a unit that systemd accepts, whose command starts, notifies and is confined."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest
from kvbraid.service.forwarding import ForwardingOptions

from tests.deploy.commands import started
from tests.service.serving import MAIN, ROOT, until

TEXT: Final = (ROOT / "deploy" / "systemd" / "kvbraid.service").read_text()
SETTINGS: Final = dict(re.findall(r"^(\w+)=(.*)$", TEXT, re.MULTILINE))
PROGRAM: Final = "/opt/kvbraid/bin/kvbraid"
CONFIG: Final = "/etc/kvbraid/fleet.toml"
_TAKEN: Final = 'kvbraid_config_reloads_total{outcome="ok"} 1.0'
MOST_EXPOSURE: Final = "20"  # In tenths of the 10 that `systemd-analyze security` may give.

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)

CONFINED: Final = f"""
import ctypes, os, sys
PR_SET_MDWE = 65
ctypes.CDLL(None).prctl(PR_SET_MDWE, 1, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-c", {MAIN!r}, *sys.argv[1:]])
"""
"""What MemoryDenyWriteExecute=yes does, where the kernel can (6.3 and later)."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The command `kvbraid` of this environment, as a file."""
    path = tmp_path / "kvbraid"
    path.write_text(f"#!{sys.executable}\n{MAIN}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def unit(tmp_path: Path, program: Path) -> Path:
    """The unit, for a program that is there."""
    assert PROGRAM in TEXT
    path = tmp_path / "kvbraid.service"
    path.write_text(TEXT.replace(PROGRAM, str(program)))
    return path


def command(config: Path) -> list[str]:
    """Return the arguments of ExecStart, for another file."""
    found, *arguments = shlex.split(SETTINGS["ExecStart"])
    assert found == PROGRAM
    assert CONFIG in arguments
    return [str(config) if each == CONFIG else each for each in arguments]


@needs_systemd
def test_systemd_accepts_the_unit(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_systemd_finds_little_exposed(unit: Path) -> None:
    options = ("--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE}")
    done = subprocess.run(
        ["systemd-analyze", "security", *options, unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_of_the_unit_is_ready_and_fed_before_the_watchdog_bites(
    tmp_path: Path,
) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text("[server]\nport = 0\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(20)
        env = {
            **os.environ,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": f"{int(SETTINGS['WatchdogSec']) * 1_000_000}",
        }
        confined = [sys.executable, "-c", CONFINED, *command(config)]
        with started(confined, env=env) as (process, url):
            assert httpx.get(f"{url}/readyz").status_code == 200
            assert SETTINGS["Type"] == "notify"
            assert [told.recv(100), told.recv(100)] == [b"READY=1", b"WATCHDOG=1"]
            assert SETTINGS["ExecReload"] == "/bin/kill -HUP $MAINPID"
            process.send_signal(signal.SIGHUP)
            shown = until(lambda: httpx.get(f"{url}/metrics").text, lambda text: _TAKEN in text)
            assert _TAKEN in shown
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0


def test_a_configuration_that_is_refused_is_not_tried_again(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text("[server]\nprot = 0\n")
    done = subprocess.run([sys.executable, "-c", MAIN, *command(config)], check=False)
    assert str(done.returncode) == SETTINGS["RestartPreventExitStatus"]


def test_requests_in_flight_have_their_time_to_end() -> None:
    assert int(SETTINGS["TimeoutStopSec"]) > ForwardingOptions().end_s
