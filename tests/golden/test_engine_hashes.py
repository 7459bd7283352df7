"""Block hashes that real engines computed; `engine_hashes.json` says where each comes from.

`captured`: requests of recorded traffic and the integer hashes that the engine published for them
(vLLM 0.32). `engine_0_33`: what vLLM 0.33's own request hasher returns for a request with every
kind of extra key. The rest: values measured on both.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from kvbraid.hashing import (
    EngineHash,
    ExtraKeys,
    HashAlgo,
    Lora,
    MediaItem,
    block_hashes,
    block_keys,
    none_hash,
)

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("engine_hashes.json").read_text())


def _engine(vector: dict[str, Any]) -> EngineHash:
    lookahead = vector.get("lookahead", 0)
    return EngineHash(HashAlgo(vector["algo"]), vector["seed"], vector["block_size"], lookahead)


def _extra(vector: dict[str, Any]) -> ExtraKeys:
    embeds = vector.get("prompt_embeds")
    return ExtraKeys(
        lora=Lora(*vector["lora"]) if vector["lora"] else None,
        cache_salt=vector["cache_salt"],
        media=tuple(MediaItem(*item) for item in vector.get("media", ())),
        prompt_embeds=None if embeds is None else tuple(map(bytes.fromhex, embeds)),
    )


@pytest.mark.parametrize(("algo", "seed", "expected"), GOLDEN["none_hashes"])
def test_the_seed_hash_is_the_engines(algo: str, seed: str | None, expected: str | None) -> None:
    digest = none_hash(HashAlgo(algo), seed)
    assert (digest and digest.hex()) == expected


def test_the_first_block_of_sixteen_ones() -> None:
    vector = GOLDEN["first_block_of_sixteen_ones"]
    engine = EngineHash(HashAlgo(vector["algo"]), vector["seed"], 16)
    assert [digest.hex() for digest in block_hashes([1] * 16, engine)] == [vector["hash"]]


@pytest.mark.parametrize("vector", GOLDEN["captured"])
def test_captured_requests_have_the_hashes_that_were_published(vector: dict[str, Any]) -> None:
    assert block_keys(vector["tokens"], _engine(vector), _extra(vector)) == vector["keys"]


@pytest.mark.parametrize("vector", GOLDEN["engine_0_33"])
def test_every_extra_key_enters_the_hash_as_in_the_engine(vector: dict[str, Any]) -> None:
    digests = block_hashes(vector["tokens"], _engine(vector), _extra(vector))
    assert [digest.hex() for digest in digests] == vector["hashes"]
