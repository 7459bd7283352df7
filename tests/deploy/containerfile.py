"""Reads a Containerfile, and follows it in a folder instead of an image.

Only what ours has is known: ARG, FROM, COPY of files and folders, RUN, settings, and ENTRYPOINT
and CMD as JSON. The base image is this machine: OWN_PATHS lie under `root`, and all else where
this machine has it.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.service.serving import ROOT

FILE: Final = ROOT / "deploy" / "container" / "Containerfile"

OWN_PATHS: Final = ("/opt/kvbraid", "/src")
"""The folders of the image that our instructions name."""


def instructions() -> Iterator[tuple[str, str]]:
    """Yield each instruction and its arguments."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line:
            name, _, arguments = line.partition(" ")
            yield name, arguments


@dataclass
class Image:
    """What following the instructions has made: the files of the last stage, and its settings."""

    folder: Path
    context: Path
    env: Mapping[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    stage: str = ""

    @property
    def root(self) -> Path:
        """Where the files of the stage lie; scripts of a stage remain valid in the next."""
        return self.folder / "root"

    def build(self) -> None:
        """Follow all instructions."""
        follow = {"FROM": self._begin, "ARG": self._define, "COPY": self._copy, "RUN": self._run}
        for name, arguments in instructions():
            follow.get(name, partial(self.settings.__setitem__, name))(arguments)

    def command(self) -> list[str]:
        """Return ENTRYPOINT with CMD, for where their files lie."""
        words = json.loads(self.settings["ENTRYPOINT"]) + json.loads(self.settings["CMD"])
        return [self._here(word) for word in words]

    def _here(self, text: str) -> str:
        for path in OWN_PATHS:
            text = re.sub(rf"(?<![\w/]){path}\b", f"{self.root}{path}", text)
        return text

    def _begin(self, arguments: str) -> None:
        if self.root.exists():
            self.root.rename(self.folder / self.stage)
        self.stage = arguments.partition(" AS ")[2] or "last"
        self.root.mkdir()
        self.settings.clear()

    def _define(self, arguments: str) -> None:
        name, _, value = arguments.partition("=")
        self.arguments[name] = value

    def _copy(self, arguments: str) -> None:
        *options, source, target = arguments.split()
        base = self.context
        for option in options:
            base = self.folder / option.removeprefix("--from=")
        copied, into = base / source.lstrip("/"), Path(f"{self.root}{target}")
        if copied.is_dir():
            shutil.copytree(copied, into, symlinks=True)
        else:
            into.mkdir(parents=True, exist_ok=True)
            shutil.copy(copied, into)

    def _run(self, arguments: str) -> None:
        env = {**os.environ, **self.env, **self.arguments}
        subprocess.run(["sh", "-ec", self._here(arguments)], env=env, check=True, timeout=120)
