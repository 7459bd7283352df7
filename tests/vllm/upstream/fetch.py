"""Fetch vLLM's own tests of its cache and of failed loads, from its source distribution.

    python fetch.py FOLDER

pip has no command that downloads a source distribution without building it, so this asks pip's own
finder, with the index, the certificates and the credentials that pip is configured with. The file
must be the one that is named here; only the tests below are unpacked. The tests of failed loads
name a model of a hub, of which they need the shape alone: its configuration is written here.
"""

import hashlib
import json
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

VERSION: Final = "0.32.0"
SHA256: Final = "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"
WANTED: Final = (
    "tests/__init__.py",
    "tests/v1/__init__.py",
    "tests/v1/core/__init__.py",
    "tests/v1/core/test_prefix_caching.py",
    "tests/v1/core/test_single_type_kv_cache_manager.py",
    "tests/v1/core/prefix_cache/test_mamba_eagle_resume_checkpoint.py",
    "tests/v1/core/prefix_cache/test_partial_prefix_cache_hits.py",
    "tests/v1/core/prefix_cache/test_partial_prefix_cache_primitives.py",
    "tests/v1/kv_connector/__init__.py",
    "tests/v1/kv_connector/unit/__init__.py",
    "tests/v1/kv_connector/unit/conftest.py",
    "tests/v1/kv_connector/unit/utils.py",
    "tests/v1/kv_connector/unit/test_cache_pollution_prevention.py",
    "tests/v1/kv_connector/unit/test_error_propagation.py",
    "tests/v1/kv_connector/unit/test_invalid_blocks_correctness.py",
    "tests/v1/kv_connector/unit/test_kv_load_failure_recovery.py",
    "tests/v1/kv_connector/unit/test_output_aggregator.py",
)
MODEL: Final = "facebook/opt-125m"
MODEL_CONFIG: Final = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": 50_272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "ffn_dim": 3_072,
    "max_position_embeddings": 2_048,
}
_CHUNK_BYTES: Final = 1 << 20


def download(path: Path) -> None:
    """Download the source distribution to `path`."""
    from pip._internal.commands import create_command
    from pip._vendor.packaging.specifiers import SpecifierSet

    command: Any = create_command("download")  # What follows is private: pip has no interface.
    options, _ = command.parse_args(["--no-binary", ":all:", "--no-deps"])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        found = finder.find_best_candidate("vllm", SpecifierSet(f"=={VERSION}")).best_candidate
        if found is None:
            sys.exit(f"the index that pip is configured with has no source of vllm {VERSION}")
        url = found.link.url_without_fragment
        # Else a server may say how the file is packed, and it is unpacked on the way.
        with session.get(url, headers={"Accept-Encoding": "identity"}, stream=True) as answer:
            answer.raise_for_status()
            with path.open("wb") as file:
                for chunk in answer.iter_content(_CHUNK_BYTES):
                    file.write(chunk)


def check(path: Path) -> None:
    """Refuse any other file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        sys.exit(f"{path.name} has the SHA-256 {digest}; expected {SHA256}")


def unpack(path: Path, folder: Path) -> None:
    """Unpack the tests alone, without the archive's outer folder."""
    prefix = f"vllm-{VERSION}/"
    with tarfile.open(path) as archive:
        for name in WANTED:
            member = archive.getmember(prefix + name)
            member.name = name
            archive.extract(member, folder, filter="data")


def write_model(folder: Path) -> None:
    """Write the model's configuration to the path that its name is, seen from the folder."""
    model = folder / MODEL
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(MODEL_CONFIG))


def main(folder: Path) -> None:
    """Fetch the tests into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"vllm-{VERSION}.tar.gz"
    if not path.exists():
        download(path)
    check(path)
    unpack(path, folder)
    write_model(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
