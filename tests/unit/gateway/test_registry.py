"""Prompts on the event loop and on threads: who waits, for how long, and what is compared."""

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens import TokenizerFiles, TokenizerOptions, Tokenizers
from kvbraid.gateway.tokens.bodies import PromptBody, read_body
from kvbraid.gateway.tokens.encoding import Encoder
from kvbraid.gateway.tokens.model_files import PromptMaker, read_files

from tests.unit.gateway.model_folders import TURNS, write_model

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


class Held(Encoder):
    """An encoder that waits until it may go on; then each text is one id, or a wrong one."""

    def __init__(self, *, fast: bool = False) -> None:
        self.may_go_on = Event()
        self.right, self.fast = True, fast

    @property
    def is_fast(self) -> bool:
        return self.fast

    def encode(self, text: str, *, add_special_tokens: bool) -> memoryview:
        assert self.may_go_on.wait(60)
        return memoryview(b"\0\0\0\0").cast("I")

    def agrees(self, text: str, ids: memoryview, *, add_special_tokens: bool) -> bool:
        self.fast = self.right
        return self.right


def body(content: str = "a", **fields: object) -> PromptBody:
    messages = [{"role": "user", "content": content}]
    return read_body(json.dumps({"messages": messages, **fields}).encode())


def chatting(folder: Path, template: str, options: TokenizerOptions | None = None) -> Tokenizers:
    files = {"m": TokenizerFiles(folder=write_model(folder, template))}
    return Tokenizers.of(files, options)


def why(waiting: Coroutine[Any, Any, memoryview]) -> str:
    with pytest.raises(NoTokensError) as refused:
        asyncio.run(waiting)
    return refused.value.why


def test_short_prompts_are_encoded_on_the_loop_and_long_ones_on_threads(tmp_path: Path) -> None:
    tokens = chatting(tmp_path, TURNS, TokenizerOptions(short_characters=100))
    plain = Tokenizers({"m": tokens.makers["m"]}, TokenizerOptions(short_characters=1 << 20))

    async def both(content: str) -> None:
        ids = await tokens.of_chat("m", body(content))
        assert ids == await plain.of_chat("m", body(content))
        text = await tokens.of_text("m", content, add_special_tokens=True)
        assert text == await plain.of_text("m", content, add_special_tokens=True)

    asyncio.run(both("Hello"))
    assert tokens.counts == {"on_the_loop": 2}
    asyncio.run(both("Hello " * 100))
    assert tokens.counts == {"on_the_loop": 2, "on_threads": 2}


def test_without_the_fast_package_even_short_prompts_go_to_threads(tmp_path: Path) -> None:
    files = TokenizerFiles(folder=write_model(tmp_path), fast=False)
    tokens = Tokenizers.of({"m": files}, TokenizerOptions(short_if_slow=10))
    asyncio.run(tokens.of_text("m", "a" * 10, add_special_tokens=False))
    assert tokens.counts == {"on_the_loop": 1}
    asyncio.run(tokens.of_text("m", "a" * 11, add_special_tokens=False))
    assert tokens.counts == {"on_the_loop": 1, "on_threads": 1}


def test_a_short_prompt_that_needs_many_steps_goes_to_a_thread(tmp_path: Path) -> None:
    tokens = chatting(tmp_path, "{% for i in range(n) %}{% endfor %}a")
    for number, place in ((10, "on_the_loop"), (10_000, "on_threads")):
        asyncio.run(tokens.of_chat("m", body(chat_template_kwargs={"n": number})))
        assert tokens.counts[place] == 1


@pytest.mark.parametrize(
    "options", [TokenizerOptions(steps=10_000), TokenizerOptions(render_s=0.0)]
)
def test_a_template_without_an_end_is_too_slow(tmp_path: Path, options: TokenizerOptions) -> None:
    tokens = chatting(tmp_path, LOOP, options)
    assert why(tokens.of_chat("m", body())) == "too_slow"


def test_nobody_waits_longer_than_may_be() -> None:
    encoder = Held()
    tokens = Tokenizers(
        {"m": PromptMaker(encoder, None)}, TokenizerOptions(short_if_slow=0, wait_s=0.01)
    )

    async def abandoned() -> memoryview:
        try:
            return await tokens.of_text("m", "a", add_special_tokens=False)
        finally:
            encoder.may_go_on.set()  # Else the loop would wait for its thread at the end.

    assert why(abandoned()) == "too_slow"


def test_only_so_many_wait() -> None:
    encoder = Held()
    options = TokenizerOptions(short_if_slow=0, threads=1, most_waiting=2, wait_s=60.0)
    tokens = Tokenizers({"m": PromptMaker(encoder, None)}, options)

    async def crowd() -> list[str]:
        waiting = [
            asyncio.ensure_future(tokens.of_text("m", "a", add_special_tokens=False))
            for _ in range(5)
        ]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        assert len(done) == 2
        encoder.may_go_on.set()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        await tokens.of_text("m", "a", add_special_tokens=False)
        return [str(each) for each in ended if isinstance(each, NoTokensError)]

    assert asyncio.run(crowd()) == ["busy", "busy"]
    assert tokens.counts["on_threads"] == 4


def test_a_stuck_template_gets_no_more_work(tmp_path: Path) -> None:
    began, may_end = Event(), Event()

    def wait() -> str:
        began.set()
        assert may_end.wait(60)
        return "a"

    folder = write_model(tmp_path, "{{ wait() }}")
    files = TokenizerFiles(folder=folder, template_arguments={"wait": wait})
    options = TokenizerOptions(short_characters=0, render_s=1e-9, wait_s=60.0)
    tokens = Tokenizers.of({"m": files}, options)

    async def both() -> None:
        first = asyncio.ensure_future(tokens.of_chat("m", body()))
        while not began.is_set():
            await asyncio.sleep(0)
        with pytest.raises(NoTokensError, match="too_slow"):
            await tokens.of_chat("m", body())
        may_end.set()
        assert len(await first) == 1
        assert len(await tokens.of_chat("m", body())) == 1

    asyncio.run(both())


def test_long_tools_make_a_long_prompt(tmp_path: Path) -> None:
    tokens = chatting(tmp_path, TURNS, TokenizerOptions(short_characters=1_000))
    tool = {"type": "function", "function": {"name": "f", "description": "a" * 1_000}}
    asyncio.run(tokens.of_chat("m", body(tools=[tool])))
    assert tokens.counts == {"on_threads": 1}


def test_one_text_in_many_is_compared_after_its_answer() -> None:
    encoder = Held(fast=True)
    encoder.may_go_on.set()
    tokens = Tokenizers({"m": PromptMaker(encoder, None)}, TokenizerOptions(compare_every=3))

    async def many(count: int) -> None:
        for _ in range(count):
            await tokens.of_text("m", "a", add_special_tokens=False)
        await tokens.compared()

    asyncio.run(many(2))
    assert "compared" not in tokens.counts
    asyncio.run(many(1))
    assert (tokens.counts["compared"], tokens.counts["differed"]) == (1, 0)
    encoder.right = False
    asyncio.run(many(9))
    assert (tokens.counts["compared"], tokens.counts["differed"]) == (2, 1)
    assert not encoder.is_fast


def test_texts_have_a_longest_length(tmp_path: Path) -> None:
    tokens = chatting(tmp_path, TURNS, TokenizerOptions(most_characters=1_000))
    assert why(tokens.of_text("m", "a" * 1_001, add_special_tokens=False)) == "too_many_tokens"
    assert why(tokens.of_chat("m", body("a" * 1_001))) == "too_many_tokens"


def test_ten_megabytes_in_a_message_have_ids(tmp_path: Path) -> None:
    tokens = chatting(tmp_path, TURNS, TokenizerOptions(wait_s=60.0, render_s=60.0))
    if tokens.makers["m"].encoder.is_fast:
        ids = asyncio.run(tokens.of_chat("m", body("Hello you! " * 1_000_000)))
        assert len(ids) > 1_000_000


def test_what_is_not_known_has_a_reason(tmp_path: Path) -> None:
    maker = read_files(TokenizerFiles(folder=write_model(tmp_path)))
    tokens = Tokenizers({"m": maker})
    assert why(tokens.of_text("other", "a", add_special_tokens=True)) == "no_tokenizer"
    assert why(tokens.of_chat("other", body())) == "no_tokenizer"
    assert why(tokens.of_chat("m", body())) == "no_template"


@pytest.mark.parametrize("name", ["threads", "most_waiting", "steps", "compare_every"])
def test_options_that_nothing_works_with_are_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} is 0; expected an integer of at least 1"):
        TokenizerOptions(**{name: 0})
