"""People's own prompts: token ids or text, what separates caches, which prompts go on where."""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from kvbraid.cache import CacheConfig, CacheManager, Dense
from kvbraid.errors import InvalidValueError, TraceError
from kvbraid.sim.one_by_one import OneByOne
from kvbraid.sim.traces.models import simulated_model
from kvbraid.sim.traces.read import read_trace
from kvbraid.sim.traces.simulation import CHUNK_TOKENS, simulate
from kvbraid.sim.traces.trace import Trace
from kvbraid.tokenizer import load_tokenizer

BLOCK = 16


def written(folder: Path, *lines: object) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def shared(trace: Trace) -> list[list[int]]:
    """For each pair of prompts, the leading blocks that they share."""
    ids = [list(request.ids) for request in trace.play()]
    return [[sum(x == y for x, y in zip(a, b, strict=False)) for b in ids] for a in ids]


def conversations(trace: Trace) -> list[int]:
    return [request.conversation for request in trace.play()]


def tokens(*blocks: int) -> list[int]:
    return [1_000 * block + i for block in blocks for i in range(BLOCK)]


def test_prompts_share_exactly_the_whole_blocks_of_their_common_beginning(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        tokens(1, 2, 3),
        {"token_ids": [*tokens(1, 2), 7]},
        {"prompt": tokens(4, 2), "model": "any", "max_tokens": 3},
    )
    trace = read_trace(path)
    assert (trace.name, trace.block_tokens, trace.num_requests) == ("own", BLOCK, 3)
    assert [request.num_tokens for request in trace.play()] == [48, 33, 32]
    assert shared(trace) == [[3, 2, 0], [2, 2, 0], [0, 0, 2]], "a block after others is another"


def test_a_salt_and_an_adapter_separate_equal_tokens(tmp_path: Path) -> None:
    rows = [{}, {"cache_salt": "s"}, {"lora": "l"}, {"lora": "l", "cache_salt": "s"}, {}]
    path = written(tmp_path, *({"token_ids": tokens(1), **row} for row in rows))
    assert shared(read_trace(path)) == [[int(a == b) for b in rows] for a in rows]


def test_a_prompt_that_goes_on_where_one_ended_continues_its_conversation(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        [*tokens(1), 5],
        [*tokens(1, 2), 5],  # Goes on.
        tokens(9),
        tokens(1, 2, 3),  # Goes on.
        tokens(1, 2, 4),  # The second has been continued: a branch.
        tokens(1, 2, 4),  # The same again.
        [5],  # No whole block.
        [5],
    )
    assert conversations(read_trace(path)) == [1, 1, 2, 1, 3, 3, 4, 5]


def test_a_name_decides_which_conversation_it_is(tmp_path: Path) -> None:
    names: list[str | int] = ["a", "b", "a", 7, "7"]
    path = written(tmp_path, *({"token_ids": tokens(1), "conversation": name} for name in names))
    first, second, again, number, text = conversations(read_trace(path))
    assert first == again
    assert number == text
    assert len({first, second, number}) == 3


class Encoding(NamedTuple):
    ids: list[int]


class Tokenizer:
    """A stand-in for that of the package: its file is a list of words, and a word is a token."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)

    @classmethod
    def from_file(cls, path: str) -> "Tokenizer":
        try:
            return cls(json.loads(Path(path).read_text())["words"])
        except (OSError, KeyError) as error:
            raise Exception(f"no words: {error}") from None

    def encode(self, text: str) -> Encoding:
        return Encoding([self._words.index(word) for word in text.split()])


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tokenizers")
    monkeypatch.setattr(module, "Tokenizer", Tokenizer, raising=False)
    monkeypatch.setitem(sys.modules, "tokenizers", module)


@pytest.fixture
def tokenizer(tmp_path: Path, package: None) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"words": ["they", "how", "are", "you"]}')
    return path


def test_text_becomes_the_tokens_of_the_models_own_tokenizer(
    tmp_path: Path, tokenizer: Path
) -> None:
    text = written(tmp_path, {"prompt": "how are you " * 11}, {"prompt": "how are they"})
    in_file, in_folder = (
        read_trace(text, encode=load_tokenizer(path)) for path in (tokenizer, tokenizer.parent)
    )
    as_ids = read_trace(written(tmp_path, [1, 2, 3] * 11, [1, 2, 0]))
    assert list(in_file.play()) == list(in_folder.play()) == list(as_ids.play())
    assert [request.num_tokens for request in in_file.play()] == [33, 3]


def test_without_the_package_text_is_refused_with_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InvalidValueError, match=r"pip install '\.\[prompts\]', or give token"):
        load_tokenizer(Path("tokenizer.json"))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("text", [None, "{}"])
def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        InvalidValueError, match=r"other\.json: .*; give a model's tokenizer\.json"
    ):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"prompt": "text"}], "line 1: `prompt` is text; give --tokenizer"),
        ([{"messages": []}], "line 1: messages are no prompt; give the text that"),
        ([[1], {"messages": []}], "line 2: messages are no prompt"),
        ([[1], 5], "line 2: a int; expected token ids, or an object"),
        ([[1], {"prompt": 5}], "line 2: 5 instead of token ids"),
        ([{"token_ids": "1 2"}], "line 1: '1 2' instead of token ids; expected a list"),
        ([[1], []], "line 2: no token; a prompt has one at least"),
        ([[1], [1, -1]], "line 2: token id 1 is -1; expected an integer from 0 to 4294967295"),
        ([[1 << 32]], "line 1: token id 0 is 4294967296"),
        ([[1, 2.5]], "line 1: token id 1 is 2.5"),
        ([{"token_ids": [1], "cache_salt": 5}], "line 1: `cache_salt` is 5; expected text"),
        ([{"token_ids": [1], "conversation": 1.5}], "line 1: `conversation` is 1.5"),
        (
            [{"token_ids": [1], "lora": "\ud800"}],
            "line 1: `lora` is '\\ud800'; expected",
        ),
    ],
)
def test_a_line_that_is_no_prompt_is_named(
    tmp_path: Path, lines: Sequence[Any], message: str
) -> None:
    with pytest.raises(TraceError) as refused:
        read_trace(written(tmp_path, *lines))
    assert f"own.jsonl: {message}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "llama-3.1-8b", "jamba-mini"])
def test_hits_are_those_of_a_cache_that_gets_the_tokens_themselves(
    tmp_path: Path, name: str
) -> None:
    """Of the tokens after a prompt's last whole block both compute one."""
    draw, model = random.Random(3), simulated_model(name)
    prompts: list[list[int]] = []
    for _ in range(60):
        start = draw.choice(prompts)[: draw.randrange(400)] if prompts else []
        prompts.append(start + draw.choices(range(9), k=draw.randint(1, 200)))
    trace = read_trace(written(tmp_path, *prompts))
    result = simulate(trace, model, 300, Dense())
    cache = CacheManager(
        CacheConfig(topology=model.topology, num_blocks=300, max_in_flight_tokens=CHUNK_TOKENS)
    )
    engine = OneByOne(cache, max_step_tokens=CHUNK_TOKENS)
    hits = [engine.run(prompt[: len(prompt) // BLOCK * BLOCK + 1]) for prompt in prompts]
    assert result.hit_tokens == sum(hits) > 0
