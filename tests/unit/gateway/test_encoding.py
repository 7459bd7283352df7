"""The fast package gives the ids of the other one, or is not used; long-lived caches included."""

import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import InvalidValueError
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.encoding import Encoder
from tokenizers import Tokenizer
from tokenizers.models import Model, Unigram, WordLevel, WordPiece
from tokenizers.pre_tokenizers import Whitespace

from tests.unit.gateway.model_folders import SPECIAL, tokenizer_text, write_model


@cache
def encoders() -> tuple[Encoder, Encoder]:
    """The fast and the slow encoder of one file; hypothesis gives them one text after another."""
    with TemporaryDirectory() as folder:
        path = write_model(Path(folder)) / "tokenizer.json"
        return Encoder(path), Encoder(path, fast=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path) / "tokenizer.json"


turns = st.lists(st.sampled_from([*SPECIAL, "user\n", "Hello, they'll go.\n", " ", "<|", "é"]))
texts = st.one_of(
    turns.map("".join), st.text(), st.tuples(turns.map("".join), st.text()).map("".join)
)


@given(text=texts, special=st.booleans())
def test_both_give_the_ids_of_the_package_itself(text: str, special: bool) -> None:
    fast, slow = encoders()
    assert fast.is_fast
    assert not slow.is_fast
    true = Tokenizer.from_str(tokenizer_text()).encode(text, add_special_tokens=special).ids
    for encoder in (fast, slow):
        ids = encoder.encode(text, add_special_tokens=special)
        assert (ids.format, list(ids)) == ("I", true)
        assert encoder.agrees(text, ids, add_special_tokens=special)


def test_what_the_file_says_of_truncation_and_padding_is_not_done(path: Path) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_text())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
    for fast in (True, False):
        encoder = Encoder(path, fast=fast)
        assert len(encoder.encode("user " * 50, add_special_tokens=False)) > 8
        assert len(encoder.encode("a", add_special_tokens=False)) == 1


class Pretender:
    """A fast package that gives wrong ids for one text."""

    def __init__(self, path: str, wrong: str) -> None:
        self._tokenizer = Tokenizer.from_file(path)
        self._wrong = wrong

    def encode_batch_flat(
        self, texts: list[str], *, add_special_tokens: bool
    ) -> tuple[bytes, bytes]:
        (text,) = texts
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        ids += [0] * (text == self._wrong)
        return b"".join(each.to_bytes(4, sys.byteorder) for each in ids), b""

    def no_truncation(self) -> None: ...
    def no_padding(self) -> None: ...
    def enable_segment_cache(self, size: int) -> None: ...


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    wrong = ["a text that nobody tries"]
    module = ModuleType("fastokens")

    class Faked:
        @staticmethod
        def from_file(path: str) -> Pretender:
            return Pretender(path, wrong[0])

    monkeypatch.setattr(module, "Tokenizer", Faked, raising=False)
    monkeypatch.setitem(sys.modules, "fastokens", module)
    return wrong


def test_a_difference_at_the_start_keeps_it_out(path: Path, pretended: list[str]) -> None:
    pretended[0] = "I'll don't WE'VE it's 'quoted' O'Neill's"
    encoder = Encoder(path)
    assert not encoder.is_fast
    assert "other ids for \"I'll don't" in encoder.why_slow


def test_a_difference_later_ends_its_use(path: Path, pretended: list[str]) -> None:
    encoder = Encoder(path)
    assert (encoder.is_fast, encoder.why_slow) == (True, "")
    for text in ("right", *pretended):
        ids = encoder.encode(text, add_special_tokens=False)
        assert encoder.is_fast
        agreed = encoder.agrees(text, ids, add_special_tokens=False)
        assert agreed == (text == "right")
    assert not encoder.is_fast
    assert encoder.why_slow == "it has other ids for 'a text that nobody tries'"
    again = encoder.encode(pretended[0], add_special_tokens=False)
    assert encoder.agrees(pretended[0], again, add_special_tokens=False)


def test_without_the_fast_package_the_other_one_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    encoder = Encoder(path)
    assert not encoder.is_fast
    assert encoder.why_slow == "the package fastokens is not installed"
    assert list(encoder.encode("</s>", add_special_tokens=True)) == [0, 1]


@pytest.mark.parametrize(
    "model",
    [
        WordLevel({"[UNK]": 0, "how": 1}, unk_token="[UNK]"),
        WordPiece({"[UNK]": 0, "how": 1, "##ever": 2}, unk_token="[UNK]"),
        Unigram([("<unk>", 0.0), ("how", -1.0), ("h", -2.0)], unk_id=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_what_is_no_bpe_is_read_by_the_other_package(tmp_path: Path, model: Model) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = Encoder(tmp_path / "tokenizer.json")
    assert not encoder.is_fast
    assert encoder.why_slow.startswith("it does not read the file: ")
    assert list(encoder.encode("how", add_special_tokens=False)) == [1]


def test_a_text_without_ids_has_a_reason(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"how": 0}, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = Encoder(tmp_path / "tokenizer.json")
    with pytest.raises(NoTokensError, match="failed"):
        encoder.encode("are", add_special_tokens=False)
    with pytest.raises(NoTokensError, match="failed"):
        encoder.agrees("are", memoryview(b"").cast("I"), add_special_tokens=False)


@pytest.mark.parametrize("text", [None, "", "{}", "[1", "\x00", '{"model": {}}'])
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "tokenizer.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        InvalidValueError, match=r"tokenizer\.json: .*; give a model's tokenizer\.json, or its"
    ) as refused:
        Encoder(path)
    assert "\n" not in str(refused.value)


def test_without_the_package_the_extra_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InvalidValueError, match=r"pip install '\.\[route\]', or give token ids"):
        Encoder(path)
