"""How much CPU does it take to read what a request asks for, token ids included?

A request of about 1 000, 8 000 and 32 000 tokens comes in as ids, as one text, and as a chat. Each
time it has a turn that was never there before, after earlier ones that the tokenizer may remember.
The rival is our own reader without `fastokens`, which has the same ids from `tokenizers`.
"""

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from kvbraid.gateway.tokens import BodyReader, TokenizerFiles, TokenizerOptions, Tokenizers
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from bench.harness.measure import Row, Sample, Side, Target

ROOT: Final = Path(__file__).resolve().parents[2]
TURN_CHARACTERS: Final = 2_000
TOKENS_OF_A_TURN: Final = 500
"""About: so many characters of our prose."""
REQUESTS: Final = 20
"""In one sample."""

WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE: Final = """\
{%- for message in messages %}
    {{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant\\n' }}{%- endif %}
"""

Ask = Callable[[int, int], tuple[str, dict[str, Any]]]
"""From a number of turns and of the request to its path and body."""


@cache
def prose() -> str:
    """Return the pages and modules of this repository."""
    pages = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("python/**/*.py"))]
    return "\n\n".join(page.read_text() for page in pages)


@cache
def tokenizer() -> str:
    """Return a tokenizer.json with 20 000 tokens, which pre-tokenizes in the manner of Qwen's."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = Sequence(
        [Split(Regex(WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    special = [AddedToken(text, special=True) for text in ("<|start|>", "<|end|>")]
    trainer = BpeTrainer(
        vocab_size=20_000,
        initial_alphabet=ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    made.train_from_iterator(prose().split("\n\n"), trainer)
    text: str = made.to_str()
    return text


def reader(folder: Path, *, fast: bool) -> BodyReader:
    """Return the reader of one model."""
    (folder / "tokenizer.json").write_text(tokenizer())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    patient = TokenizerOptions(wait_s=60.0)
    tokenizers = Tokenizers.of({"m": TokenizerFiles(folder=folder, fast=fast)}, patient)
    assert tokenizers.makers["m"].encoder.is_fast == fast
    return BodyReader(tokenizers)


def turn(number: int) -> str:
    """Return a piece of prose; each number has its own."""
    begin = Random(number).randrange(len(prose()) - TURN_CHARACTERS)
    return f"{number}: {prose()[begin : begin + TURN_CHARACTERS]}"


def turns(many: int, request: int) -> list[str]:
    """Return earlier turns, and a new one of the request."""
    return [turn(each) for each in range(many - 1)] + [turn(1_000 + request)]


def as_text(many: int, request: int) -> tuple[str, dict[str, Any]]:
    """Return a completion of one text."""
    return "/v1/completions", {"model": "m", "prompt": "".join(turns(many, request))}


def as_chat(many: int, request: int) -> tuple[str, dict[str, Any]]:
    """Return a chat."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[place % 2], "content": text}
        for place, text in enumerate(turns(many, request))
    ]
    return "/v1/chat/completions", {"model": "m", "messages": messages}


def as_ids(many: int, request: int) -> tuple[str, dict[str, Any]]:
    """Return a completion of ids: as many as a text of these turns has."""
    ids = range(request, request + many * TOKENS_OF_A_TURN)
    return "/v1/completions", {"model": "m", "prompt": [each % 20_000 for each in ids]}


def side(ask: Ask, many: int, *, fast: bool = True) -> Side:
    """Requests of so many turns, one after the other; a sample is the median of their times."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        numbers = count()
        loop = asyncio.new_event_loop()

        async def once(reads: BodyReader) -> float:
            path, body = ask(many, next(numbers))
            data = json.dumps(body).encode()
            begin = time.process_time_ns()
            prompt = await reads.read(path, {}, data)
            taken = time.process_time_ns() - begin
            assert prompt.token_ids is not None, prompt.why_no_tokens
            return taken / 1_000

        async def several(reads: BodyReader) -> float:
            return statistics.median([await once(reads) for _ in range(REQUESTS)])

        with TemporaryDirectory() as folder:
            reads = reader(Path(folder), fast=fast)
            loop.run_until_complete(once(reads))
            yield lambda: loop.run_until_complete(several(reads))
        loop.close()

    return side


def row(name: str, what: str, ask: Ask, target: float) -> Row:
    """Return the row of 8 000 tokens, with shorter and longer requests beside it."""
    beside = {"ours_1k": side(ask, 2), "ours_32k": side(ask, 64)}
    if ask is not as_ids:
        slow = {"rival_1k": 2, "rival_32k": 64}
        beside |= {key: side(ask, many, fast=False) for key, many in slow.items()}
    return Row(
        name=f"tokens_{name}",
        question=f"CPU to read a request of 8 000 tokens, {what}, and to have its ids",
        unit="us",
        ours=side(ask, 16),
        rival=None if ask is as_ids else side(ask, 16, fast=False),
        target=Target(ours=target),
        beside=beside,
        samples=5,
    )


ROWS = (
    row("ids", "a list of ids", as_ids, 600),
    row("text", "a text", as_text, 600),
    row("chat", "a chat", as_chat, 800),
)
