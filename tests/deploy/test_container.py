"""deploy/container: its instructions, followed in a folder, make something that serves."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import httpx
import pytest
from kvbraid.service.config import ServerOptions

from tests.deploy.commands import started
from tests.deploy.containerfile import FILE, Image, instructions
from tests.service.serving import ROOT

WHEELS: Final = sorted((ROOT / "dist").glob("*.whl"))
IS_WHEEL: Final = os.environ.get("KVBRAID_TESTED") == "wheel"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """What the build is given: the wheel that is tested, and the versions of what is here."""
    context = tmp_path / "context"
    release = context / "release"
    release.mkdir(parents=True)
    (wheel,) = WHEELS
    (release / wheel.name).symlink_to(wheel)
    installed = {each.name: each.version for each in distributions()}
    lock = "".join(f"{name}=={version}\n" for name, version in installed.items())
    (context / "requirements.lock").write_text(lock)
    return context


@pytest.fixture
def env(tmp_path: Path) -> Mapping[str, str]:
    """Lets pip find what is installed here, but for kvbraid, and ask nobody else."""
    others, programs = tmp_path / "others", tmp_path / "bin"
    others.mkdir()
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    for folder in filter(os.path.isdir, sys.path):
        for entry in Path(folder).iterdir() if folder.endswith("site-packages") else ():
            link = others / entry.name
            if not entry.name.startswith(("kvbraid", "pip")) and not link.exists():
                link.symlink_to(entry)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(others),
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@pytest.mark.skipif(not WHEELS and not IS_WHEEL, reason="needs the wheel")
def test_what_the_file_builds_serves(
    tmp_path: Path, context: Path, env: Mapping[str, str]
) -> None:
    image = Image(tmp_path, context, env)
    image.build()
    with started([*image.command(), "--port", "0"], env={**os.environ, **env}) as (process, url):
        assert url.startswith("http://0.0.0.0:")
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{here}/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert not list(image.root.glob("opt/kvbraid/bin/pip*"))
    assert not (image.root / "src").exists()


def test_the_image_runs_as_nobody_on_the_port_that_it_says() -> None:
    said = dict(instructions())
    assert all(number.isdecimal() and int(number) > 0 for number in said["USER"].split(":"))
    assert int(said["EXPOSE"]) == ServerOptions().port
    assert "--port" not in json.loads(said["CMD"])


def test_the_build_is_sent_what_it_copies_and_nothing_else() -> None:
    ignored, *sent = FILE.with_name("Containerfile.dockerignore").read_text().split()
    copied = {
        arguments.split()[0]
        for name, arguments in instructions()
        if name == "COPY" and not arguments.startswith("--from=")
    }
    assert ignored == "*"
    assert {path.removeprefix("!").removesuffix("*.whl") for path in sent} == copied
