"""Prompts of text with the real package tokenizers, which vLLM brings along."""

from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.tokenizer import load_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing


def test_a_tokenizer_of_the_package_is_read_with_its_special_tokens(tmp_path: Path) -> None:
    words = {word: number for number, word in enumerate(("<s>", "[UNK]", "how", "are", "you"))}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    for given in (path, tmp_path):
        assert list(load_tokenizer(given)("how are they")) == [0, 2, 3, 1]
    path.write_text("{}")
    with pytest.raises(InvalidValueError, match=r"tokenizer\.json: .*; give a model's tokenizer"):
        load_tokenizer(path)
    with pytest.raises(InvalidValueError, match="No such file"):
        load_tokenizer(tmp_path / "absent.json")
