"""Fetches the console's libraries from npm again, as `vendor.toml` lists them: `make vendor`.

Nothing is replaced unless all files have the hashes of the list. For a new version, write it there
and run this: the refusal shows the new hash.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[2] / "python" / "kvbraid" / "console" / "vendor"


def listed() -> dict[str, dict[str, Any]]:
    """Return the list, by name of the package."""
    return tomllib.loads((VENDOR / "vendor.toml").read_text(encoding="utf-8"))


def fetched(name: str, library: dict[str, Any], folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the place and the bytes of each file of a library, as npm has it."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is not installed: make vendor fetches from it")
    package = f"{name}@{library['version']}"
    command = [npm, "pack", "--silent", "--pack-destination", str(folder), package]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (packed,) = folder.glob(f"{name}-*.tgz")
    with tarfile.open(packed) as archive:
        for file, expected in library["sha256"].items():
            inner = file if file == "LICENSE" else f"{library.get('folder', '.')}/{file}"
            member = archive.extractfile(str(Path("package", inner)))
            assert member is not None, f"{package} has no file {inner}"
            body = member.read()
            found = sha256(body).hexdigest()
            if found != expected:
                sys.exit(f"{package}: {file} has the hash {found}; vendor.toml expects {expected}")
            yield VENDOR / name / file, body


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [
            file
            for name, library in listed().items()
            for file in fetched(name, library, Path(folder))
        ]
    for place, body in files:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)


if __name__ == "__main__":
    main()
