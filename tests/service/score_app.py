"""What the application takes and how it refuses, as tests of several routes use it."""

from typing import Any

from httpx import Response
from kvbraid.events.model import BlockStored
from kvbraid.events.wire import encode_batch


def refusal(response: Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert set(error) == {"code", "message", "remedy"}
    assert all(error.values())
    return response.status_code, error["code"], error["message"]


POD: dict[str, Any] = {"model": "m", "endpoint": "tcp://10.0.0.1:5557"}
LLAMA4 = {
    "model_type": "llama4_text", "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "attention_chunk_size": 256,
}  # fmt: skip
TOKENS = list(range(72))


def stored() -> bytes:
    event = BlockStored(
        block_hashes=(11, 12, 13, 14), parent_block_hash=None, token_ids=tuple(TOKENS[:64]),
        block_size=16, group_idx=0, kv_cache_spec_kind="full_attention",
    )  # fmt: skip
    return encode_batch([event], ts=1.0, dp_rank=0)
