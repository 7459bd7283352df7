"""Two ranks, each in a process of its own: only messages cross, and both have to have a block.

What the ranks count is read as vLLM's server reads it, from what the processes share.
"""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from tests.vllm.offload.live_engines import HOST_BYTES, OFFLOAD_MODELS, OURS, running
from tests.vllm.recovery.live_engines import TAIL, compare, tokens
from tests.vllm.soak import LIVE_TIMEOUT


@pytest.mark.timeout(LIVE_TIMEOUT)
def test_two_processes_load_what_both_have_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, counts = Random(1), Counter[str]()
    disk, shared = tmp_path / "disk", tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(shared))
    extra = {"host_bytes": HOST_BYTES, "disk_directory": str(disk), "disk_bytes": 10**9}
    documents = [tokens(random, 600) for _ in range(3)]
    prompts = [document + tokens(random, TAIL) for document in documents]
    with running(OFFLOAD_MODELS[0], OURS, extra, ranks=2) as ours:
        first = [ours.answer(prompt) for prompt in prompts]
        ours.forget()
        for prompt, right in zip(prompts, first, strict=True):
            said = ours.answer(prompt)
            assert (right["cached"], said["cached"]) == ([0], [576])
            compare(said, right, counts)
        last = ours.ask(counts=True)
    namespaces = {each.parent.parent.name for each in disk.rglob("*-*-*") if each.is_file()}
    assert len(namespaces) == 2  # One for each rank.
    assert counts["mismatches"] == 0, counts
    assert last["hits"]["host"] > 0
    assert last["blocks"]["disk"] == last["blocks"]["host"]
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(shared))  # type: ignore[no-untyped-call]
    labels = {"engine": "0", "tier": "disk", "kind": "write", "status": "ok"}
    written = registry.get_sample_value("kvbraid_tier_records_total", labels)
    assert written is not None
    assert last["blocks"]["disk"] < written <= 2 * last["blocks"]["disk"], "of both ranks"
