"""The engines' chained block hashes, the obvious way: Python's own pickle, CBOR and digests.

Holds a model for the differential tests. Every text is a new object, as in an engine that decoded
its request from a message; the tags are literals.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence

import cbor2
import xxhash
from kvbraid.hashing import EngineHash, ExtraKeys, HashAlgo


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _cbor(value: object) -> bytes:
    return cbor2.dumps(value, canonical=True)


def _sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


ALGORITHMS: dict[HashAlgo, tuple[Callable[[object], bytes], Callable[[bytes], bytes]]] = {
    HashAlgo.SHA256: (_pickled, _sha256),
    HashAlgo.SHA256_CBOR: (_cbor, _sha256),
    HashAlgo.XXHASH: (_pickled, xxhash.xxh3_128_digest),
    HashAlgo.XXHASH_CBOR: (_cbor, xxhash.xxh3_128_digest),
}


def digest(algo: HashAlgo, value: object) -> bytes:
    serialise, function = ALGORITHMS[algo]
    return function(serialise(value))


def _new(text: str) -> str:
    return text.encode().decode()


def _extra_keys(
    extra: ExtraKeys, start: int, end: int, block: int
) -> Iterator[tuple[object, ...]]:
    if extra.lora is not None:
        yield ("lora", _new(extra.lora.name), _new(extra.lora.path))
    for item in extra.media:
        if item.offset < end and item.offset + item.length > start:
            yield ("mm", _new(item.identifier), item.offset - start)
    if start == 0 and extra.cache_salt:
        yield ("cache_salt", _new(extra.cache_salt))
    if extra.prompt_embeds is not None:
        within = block < len(extra.prompt_embeds)
        yield ("prompt_embeds", extra.prompt_embeds[block] if within else _sha256(b""))


def block_hashes(tokens: Sequence[int], engine: EngineHash, extra: ExtraKeys) -> list[bytes]:
    """Media of `extra` must not overlap each other."""
    assert engine.seed is not None
    hashes = [digest(engine.algo, _new(engine.seed))]
    size, ahead = engine.block_size, engine.lookahead
    for block in range(max(0, len(tokens) - ahead) // size):
        start, end = block * size, (block + 1) * size
        keys: tuple[object, ...] | None = (
            tuple(_extra_keys(extra, start, end + ahead, block)) or None
        )
        if ahead:
            keys = (keys, *tokens[end : end + ahead])
        message = (hashes[-1], tuple(tokens[start:end]), keys)
        hashes.append(digest(engine.algo, message))
    return hashes[1:]
