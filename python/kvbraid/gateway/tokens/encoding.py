"""Text to token ids, by the fast package where it gives what the other one gives.

`tokenizers` reads every tokenizer.json, and is what engines use. `fastokens` reads many of them,
and needs a few hundredths of the CPU. It is used if it reads the file and agrees with the other on
hard texts. It is compared again and again, and the first difference ends its use.

Both release the interpreter while they work. `tokenizers` does so only for batches, hence batches
of one.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

from kvbraid.errors import shortened
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.tokenizer import read_tokenizer

_Tokenizer: TypeAlias = Any  # Neither package has types that mypy reads.

SEGMENT_CACHE_BYTES: Final = 64 << 20
"""How much of the texts between special tokens the fast package remembers, per tokenizer."""
_MOST_TOKENS_TRIED: Final = 64

_HARD: Final = (
    "",
    " ",
    "\n",
    "  leading, double  and trailing spaces  ",
    "tabs\tand\r\nlines\n\n\n  of\n several\r kinds",
    "I'll don't WE'VE it's 'quoted' O'Neill's",
    "3.14159 1,000,000 0xFF 1e-10 12345678901234567890 ½ ² ٣",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}\n\n\n\n# end",
    "<b>&amp;</b> https://example.org/a?b=c&d=%20 a_b-c.d@e",
    "Straße façade naïve ﬁne Ǆ İstanbul ẞ",
    "e\u0301 and \u00e9, a\u0308\u0323 and \u1ea1\u0308",
    "Ελληνικά русский עברית العربية हिन्दी ไทย 한국어 日本語 中文字",
    "👩‍👩‍👧 🏳️‍🌈 👍🏽 \u200d\u200b\ufeff",
    "\x00\x01\x7f\x85\xa0\u2028\u3000\ufffd\U0010ffff",
    "a" * 300 + " " * 300 + "\n" * 100,
    "=====-----+++++/////.....!!!!!?????,,,,,",
)
_ALPHABETS: Final = (
    "abcdefghij ABC  .,'\n",
    "0123456789 .,-eE%\t",
    "\u00e4\u00f6\u00fc\u00df\u0301\u0308 e\n\r\n",
    "\u4e2d\u6587\u65e5\u672c \u30ab\u30ca\uff0c\u3002a1",
    "\U0001f469\U0001f3fd\u200d\ufe0f \u0930\u094d\u0e01\u0e34",
    '{}[]()<>"\\/_=+*#@ \n    if',
)


class Encoder:
    """The tokenizer of one model; threads may share it.

    `is_fast` says which package is used, and `why_slow` why it is not the fast one.
    """

    def __init__(self, path: Path, *, fast: bool = True) -> None:
        """Read a tokenizer.json; `fast` allows the package fastokens.

        Raises:
            InvalidValueError: The package tokenizers is missing, or the file is no tokenizer.
        """
        self._slow: _Tokenizer = read_tokenizer(path, extra="route")
        self._slow.no_truncation()
        self._slow.no_padding()
        self._fast: _Tokenizer | None = None
        self.why_slow = "" if fast else "switched off"
        if fast:
            self._use_fast(path)

    @property
    def is_fast(self) -> bool:
        """Whether the fast package is used."""
        return self._fast is not None

    def encode(self, text: str, *, add_special_tokens: bool) -> memoryview:
        """Return the ids of a text, a buffer of uint32.

        Raises:
            NoTokensError: `failed`.
        """
        fast = self._fast
        try:
            if fast is not None:
                return _by_fast(fast, text, add_special_tokens)
            return _by_slow(self._slow, text, add_special_tokens)
        except Exception:  # noqa: BLE001 - the packages raise nothing more special
            raise NoTokensError("failed") from None

    def agrees(self, text: str, ids: memoryview, *, add_special_tokens: bool) -> bool:
        """Compare ids with those of the package tokenizers; a difference ends the fast one's use.

        Raises:
            NoTokensError: `failed`: the text has no ids.
        """
        try:
            true = _by_slow(self._slow, text, add_special_tokens)
        except Exception:  # noqa: BLE001 - as above
            raise NoTokensError("failed") from None
        if true == ids:
            return True
        self._fast = None
        self.why_slow = f"it has other ids for {shortened(text)}"
        return False

    def _use_fast(self, path: Path) -> None:
        try:
            import fastokens
        except ImportError:
            self.why_slow = "the package fastokens is not installed"
            return
        try:
            fast = fastokens.Tokenizer.from_file(str(path))
            fast.no_truncation()
            fast.no_padding()
            self._fast = fast
            for text in _hard_texts(self._slow):
                for special in (False, True):
                    ids = _by_fast(fast, text, special)
                    if not self.agrees(text, ids, add_special_tokens=special):
                        return
            fast.enable_segment_cache(SEGMENT_CACHE_BYTES)
        except Exception as error:  # noqa: BLE001 - as above
            self._fast = None
            self.why_slow = f"it does not read the file: {shortened(str(error))}"


def _by_fast(tokenizer: _Tokenizer, text: str, special: bool) -> memoryview:
    ids, _ends = tokenizer.encode_batch_flat([text], add_special_tokens=special)
    return memoryview(ids).cast("I")


def _by_slow(tokenizer: _Tokenizer, text: str, special: bool) -> memoryview:
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=special)
    return memoryview(array("I", encoding.ids))


def _hard_texts(tokenizer: _Tokenizer) -> Iterator[str]:
    yield from _HARD
    added = [each.content for each in tokenizer.get_added_tokens_decoder().values()]
    for token in added[:_MOST_TOKENS_TRIED]:
        yield f"a {token} b{token}{token}\n c{token[:-1]} {token}"
    chance = Random(0)  # noqa: S311 - the same texts each time
    for alphabet in _ALPHABETS:
        for length in (1, 3, 10, 100, 1000):
            yield "".join(chance.choices(alphabet, k=length))
