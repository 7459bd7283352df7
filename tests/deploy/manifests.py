"""Manifests of Kubernetes: built by kubectl, and validated without a cluster."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.service.serving import ROOT

KUBECTL: Final = shutil.which("kubectl")
VALIDATE: Final = shutil.which(
    "kubernetes-validate",
    path=f"{ROOT / '.venv-gateway' / 'bin'}:{os.environ.get('PATH', '')}",
)
VERSIONS: Final = ("1.30.0", "1.37.0")
"""The first that has the hook `sleep`, and the last whose schemas there are."""

needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")
needs_validate = pytest.mark.skipif(VALIDATE is None, reason="needs kubernetes-validate")


def validate(*paths: Path, version: str) -> str:
    """Return what is wrong."""
    assert VALIDATE is not None
    options = ("--strict", "--no-warn", "--quiet", "-k", version)
    done = subprocess.run(
        [VALIDATE, *options, *paths], capture_output=True, text=True, timeout=120, check=False
    )
    assert bool(done.returncode) == bool(done.stdout + done.stderr)
    return done.stdout + done.stderr


def built(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what a kustomization is built to, by kind."""
    assert KUBECTL is not None
    text = subprocess.check_output([KUBECTL, "kustomize", folder], text=True, timeout=120)
    objects = list(yaml.safe_load_all(text))
    by_kind = {each["kind"]: each for each in objects}
    assert len(by_kind) == len(objects)
    return by_kind
