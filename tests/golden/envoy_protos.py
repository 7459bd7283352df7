"""Runs protoc on the files of Envoy's messages; `make protos` writes their modules."""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).parents[2] / "python"
PROTOS = SOURCE / "kvbraid" / "gateway" / "envoy" / "protos"


def run_protoc(*outputs: str) -> None:
    """Read every file, and write what is asked for."""
    names = [str(path.relative_to(SOURCE)) for path in sorted(PROTOS.glob("*.proto"))]
    folders = [f"--proto_path={folder}" for folder in (SOURCE, files("grpc_tools") / "_proto")]
    if protoc.main(["protoc", *folders, *outputs, *names]):
        sys.exit("protoc has refused a file of protos/; its lines above say why")


if __name__ == "__main__":
    run_protoc(f"--python_out={SOURCE}", f"--pyi_out={SOURCE}")
