"""Token ids from an engine that is asked: what it is asked, and what bad engines do to prompts."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kvbraid.gateway.prompts import Prompt
from kvbraid.gateway.tokens import AskedEngine, BodyReader, Tokenizers
from kvbraid.gateway.tokens import engine as asking

from tests.service.route_pods import Asked, Behaviour, Engine, in_loop, never_answers, until

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
TEXT = b'{"model": "m", "prompt": "Hello"}'
CHAT = b'{"messages": [{"role": "user", "content": "Hello"}], "model": "m", "seed": 7}'


@asynccontextmanager
async def reading(behaviour: Behaviour) -> AsyncIterator[tuple[BodyReader, Engine]]:
    async with Engine(behaviour).running() as engine:
        engines = {"m": AskedEngine(engine.url + "/")}
        reader = BodyReader(Tokenizers.of({}), {"poet": "m"}, engines)
        try:
            yield reader, engine
        finally:
            await reader.close()


def says(answer: object, status: str = "200 OK", more: str = "") -> Behaviour:
    async def answers(asked: Asked) -> None:
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        await asked.answer(body, status, more)

    return answers


async def dies(asked: Asked) -> None:
    asked.die()


async def writes_garbage(asked: Asked) -> None:
    await asked.write(b"nonsense\r\n\r\n")


async def never_ends(asked: Asked) -> None:
    await asked.begin("application/json")
    while not asked.gone.is_set():
        await asked.chunk(b" " * (asking.MOST_BYTES // 8))


async def drips(asked: Asked) -> None:
    await asked.begin("application/json")
    while not asked.gone.is_set():
        await asked.chunk(b" ")
        await asyncio.sleep(0.01)


def ids(prompt: Prompt) -> list[int]:
    assert prompt.token_ids is not None, prompt.why_no_tokens
    return list(prompt.token_ids)


@in_loop
async def test_a_text_is_asked_for_as_the_engine_would_take_it() -> None:
    async with reading(says({"count": 2, "max_model_len": 9, "tokens": [1, 4_000_000_000]})) as (
        reader,
        engine,
    ):
        prompt = await reader.read(COMPLETIONS, {"authorization": "Bearer k", "x-y": "z"}, TEXT)
        assert (ids(prompt), prompt.model, prompt.lora) == ([1, 4_000_000_000], "m", None)
        body = b'{"model": "poet", "prompt": ["Hello"], "add_special_tokens": false}'
        prompt = await reader.read(COMPLETIONS, {}, body)
        assert (prompt.model, prompt.lora) == ("m", "poet")
        first, second = engine.asked
        assert first.line == "POST /tokenize HTTP/1.1"
        said = {"model": "m", "prompt": "Hello", "add_special_tokens": True}
        assert json.loads(first.body) == said
        assert json.loads(second.body) == {**said, "add_special_tokens": False}
        assert (first.header("authorization"), first.header("x-y")) == ("Bearer k", None)
        assert second.header("authorization") is None
        assert first.header("content-type") == "application/json"
        assert reader.counts == {"known": 2}


@in_loop
async def test_a_chat_is_rendered_from_the_clients_own_body() -> None:
    rendered = {"request_id": "chatcmpl-1", "token_ids": [5, 6, 7], "features": None}
    async with reading(says(rendered)) as (reader, engine):
        assert ids(await reader.read(CHATS, {}, CHAT)) == [5, 6, 7]
        (asked,) = engine.asked
        assert (asked.line, asked.body) == ("POST /v1/chat/completions/render HTTP/1.1", CHAT)


@in_loop
async def test_what_needs_no_engine_or_is_of_another_model_is_not_asked() -> None:
    async with reading(says({})) as (reader, engine):
        listed = b'{"model": "m", "prompt": [1, 2]}'
        assert ids(await reader.read(COMPLETIONS, {}, listed)) == [1, 2]
        for path, body, why in (
            (COMPLETIONS, TEXT.replace(b'"m"', b'"other"'), "no_tokenizer"),
            (CHATS, CHAT.replace(b'"seed"', b'"chat_template": "x", "seed"'), "own_template"),
            ("/v1/responses", TEXT, "not_a_prompt"),
            (COMPLETIONS, b'{"model": "m", "prompt": ["a", "b"]}', "several_prompts"),
        ):
            assert (await reader.read(path, {}, body)).why_no_tokens == why
        assert engine.asked == []


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (dies, "no_engine"),
        (writes_garbage, "no_engine"),
        (says({}, "404 Not Found"), "no_engine"),
        (says({"tokens": [1]}, "302 Found", "location: /elsewhere\r\n"), "no_engine"),
        (says({"tokens": [1]}, "500 Internal Server Error"), "no_engine"),
        (says({"error": "no such role"}, "400 Bad Request"), "failed"),
        (says({}, "422 Unprocessable Entity"), "failed"),
        (says(b""), "no_engine"),
        (says(b"\xff"), "no_engine"),
        (says(b"[" * 100_000), "no_engine"),
        (says({}), "no_engine"),
        (says({"tokens": None, "token_ids": None}), "no_engine"),
        (says({"tokens": "12", "token_ids": "12"}), "no_engine"),
        (says({"tokens": [-1], "token_ids": [1.5]}), "no_engine"),
        (says({"tokens": [1 << 32], "token_ids": [1 << 70]}), "no_engine"),
        (says({"tokens": [[1]], "token_ids": [{}]}), "no_engine"),
        (never_ends, "too_many_tokens"),
        (never_answers, "too_slow"),
        (drips, "too_slow"),
    ],
)
@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, TEXT), (CHATS, CHAT)])
def test_a_bad_engine_costs_the_ids_of_a_prompt_and_nothing_else(
    behaviour: Behaviour, why: str, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", 0.2 if why == "too_slow" else 1000.0)

    @in_loop
    async def run() -> None:
        async with reading(behaviour) as (reader, engine):
            prompt = await reader.read(path, {}, body)
            assert (prompt.model, prompt.token_ids, prompt.why_no_tokens) == ("m", None, why)
            assert reader.counts == {why: 1}
            assert len(engine.asked) <= 2, "redirects are not followed; a dead connection is tried"

    run()


@in_loop
async def test_an_engine_that_is_not_there_is_a_reason() -> None:
    async with reading(dies) as (reader, engine):
        engines = {"m": AskedEngine("http://127.0.0.1:1")}
        lonely = BodyReader(Tokenizers.of({}), engines=engines)
        assert (await lonely.read(COMPLETIONS, {}, TEXT)).why_no_tokens == "no_engine"
        await lonely.close()
        del reader, engine


@in_loop
async def test_media_are_left_to_the_engine_that_computes_them() -> None:
    features: dict[str, Any] = {"mm_hashes": {"image": ["5f2c"]}}
    async with reading(says({"token_ids": [1, 9, 9], "features": features})) as (reader, _):
        assert (await reader.read(CHATS, {}, CHAT)).why_no_tokens == "not_text"


def test_only_so_many_questions_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", 1000.0)
    monkeypatch.setattr(asking, "MOST_ASKED", 3)

    @in_loop
    async def run() -> None:
        async with reading(never_answers) as (reader, engine):
            waiting = [asyncio.ensure_future(reader.read(COMPLETIONS, {}, TEXT)) for _ in range(3)]
            await until(lambda: len(engine.asked) == 3)
            assert (await reader.read(COMPLETIONS, {}, TEXT)).why_no_tokens == "busy"
            for each in waiting:
                each.cancel()  # Its client has left.
            await asyncio.gather(*waiting, return_exceptions=True)
            engine.behaviour = says({"tokens": [1]})
            assert ids(await reader.read(COMPLETIONS, {}, TEXT)) == [1]

    run()
