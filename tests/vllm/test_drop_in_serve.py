"""`vllm serve` with our scheduler works as usual: completions, cached tokens, metrics, a reset."""

from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import pytest

from tests.vllm.served_engine import serving

OURS: Final = ("--scheduler-cls", "kvbraid.integrations.vllm.KvbraidScheduler")


def complete(client: httpx.Client, prompt: list[int]) -> int:
    """Have a prompt completed; return how many of its tokens were cached."""
    request: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 8}
    answer = client.post("/v1/completions", json=request | {"ignore_eos": True}).raise_for_status()
    details = answer.json()["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"]) if details else 0


@pytest.mark.timeout(900)
def test_a_server_on_our_cache_works_as_usual() -> None:
    random = Random(3)
    prompt = [random.randrange(10, 250) for _ in range(640)]
    with serving("gemma3", *OURS) as client:
        assert [complete(client, prompt) for _ in range(2)] == [0, 608]
        assert "vllm:prefix_cache_hits_total" in client.get("/metrics").text
        client.post("/reset_prefix_cache").raise_for_status()
        assert complete(client, prompt) == 0


@pytest.mark.timeout(900)
def test_a_server_serves_which_policy_its_cache_has(tmp_path: Path) -> None:
    options = ("--additional-config", '{"kvbraid": {"retention": "value-flat", "interval": 0}}')
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with serving("gemma3", *OURS, *options, variables=shared) as client:
        complete(client, list(range(10, 210)))
        complete(client, list(range(20, 220)))
        lines = client.get("/metrics").text.splitlines()
    assert 'kvbraid_policy{engine="0",policy="value"} 1.0' in lines
    assert 'kvbraid_policy{engine="0",policy="dense"} 0.0' in lines
    assert 'kvbraid_policy_gain{engine="0",policy="dense"} 0.0' in lines
    # A request ends in the last step, whose statistics may be under way when the answer comes.
    (age,) = [line for line in lines if line.startswith("kvbraid_policy_age_requests")]
    assert age.split() in (
        ['kvbraid_policy_age_requests{engine="0"}', ended] for ended in ("1.0", "2.0")
    )
