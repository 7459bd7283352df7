"""The token ids of prompts, by model: on the event loop while they are short, on threads if long.

The loop never waits for a prompt: a short one has few steps there, and whoever needs more goes to
a thread. Threads are few, those who wait for one are counted, and everyone waits a bounded time.
One text in many is encoded a second time by the reference package, after its answer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from anyio import CapacityLimiter, move_on_after
from anyio.to_thread import run_sync

from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.bodies import PromptBody
from kvbraid.gateway.tokens.model_files import PromptMaker, TokenizerFiles, read_files
from kvbraid.gateway.tokens.templates import Allowance, OutOfStepsError
from kvbraid.reading import POSITIVE, check

_STEPS_ON_THE_LOOP: Final = 2_000
"""About a millisecond of a template."""
_OVERDUE: Final = 10.0
"""A template that has not ended after so many times its time, on the wall, is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerOptions:
    """How much prompts may take. Times are in seconds.

    A text of at most `short_characters` is encoded on the event loop, or of `short_if_slow`
    without the fast package. A longer one waits for one of `threads`, at most `wait_s` with its
    work, and at most `most_waiting` wait. A template has `steps`, and `render_s` of CPU. Its
    output, and any text, has at most `most_characters`. Every `compare_every`th text is compared.
    """

    short_characters: int = 32_768
    short_if_slow: int = 512
    threads: int = 2
    most_waiting: int = 64
    wait_s: float = 2.0
    render_s: float = 1.0
    steps: int = 2_000_000
    most_characters: int = 16 << 20
    compare_every: int = 1_000

    def __post_init__(self) -> None:
        """Refuse what nothing can be encoded with."""
        for name in ("threads", "most_waiting", "steps", "most_characters", "compare_every"):
            check(name, getattr(self, name), POSITIVE)


@dataclass(frozen=True, slots=True)
class _Encoded:
    text: str
    special: bool
    ids: memoryview


_Work: TypeAlias = Callable[[Allowance], _Encoded]


class Tokenizers:
    """Every model's tokenizer and templates; belongs to one event loop.

    `counts` has the texts `compared`, those that `differed`, and those encoded `on_the_loop` and
    `on_threads`.
    """

    def __init__(
        self, makers: Mapping[str, PromptMaker], options: TokenizerOptions | None = None
    ) -> None:
        self.makers = makers
        self.counts: Counter[str] = Counter()
        self._options = options or TokenizerOptions()
        self._limiter = CapacityLimiter(self._options.threads)
        self._num_on_threads = 0
        self._until_compared = self._options.compare_every
        self._comparison: asyncio.Task[None] | None = None

    @classmethod
    def of(
        cls, files: Mapping[str, TokenizerFiles], options: TokenizerOptions | None = None
    ) -> "Tokenizers":
        """Read the files of each model.

        Raises:
            InvalidValueError: A file is missing or wrong; the message says which, and what to do.
        """
        return cls({model: read_files(each) for model, each in files.items()}, options)

    async def of_text(self, model: str, text: str, *, add_special_tokens: bool) -> memoryview:
        """Return the ids of a text, a buffer of uint32.

        Raises:
            NoTokensError: They cannot be known here, or not now.
        """
        maker = self._maker(model)
        work = partial(self._encode, maker, text, add_special_tokens)
        return await self._do(maker, len(text), lambda _: work())

    async def of_chat(self, model: str, body: PromptBody) -> memoryview:
        """Return the ids of a chat, a buffer of uint32.

        Raises:
            NoTokensError: They cannot be known here, or not now.
        """
        maker = self._maker(model)
        chats = maker.chats
        if chats is None:
            raise NoTokensError("no_template")
        if chats.is_stuck(_OVERDUE * self._options.render_s):
            raise NoTokensError("too_slow")

        def work(allowance: Allowance) -> _Encoded:
            text = chats.render(body, allowance)
            return self._encode(maker, text, bool(body.add_special_tokens))

        parts = (body.messages, body.tools, body.documents)
        return await self._do(maker, sum(len(memoryview(raw)) for raw in parts), work)

    async def compared(self) -> None:
        """Wait for the comparison that is under way, if there is one."""
        if self._comparison is not None:
            await self._comparison

    def _maker(self, model: str) -> PromptMaker:
        maker = self.makers.get(model)
        if maker is None:
            raise NoTokensError("no_tokenizer")
        return maker

    def _encode(self, maker: PromptMaker, text: str, special: bool) -> _Encoded:
        if len(text) > self._options.most_characters:
            raise NoTokensError("too_many_tokens")
        return _Encoded(text, special, maker.encoder.encode(text, add_special_tokens=special))

    async def _do(self, maker: PromptMaker, size: int, work: _Work) -> memoryview:
        options = self._options
        is_fast = maker.encoder.is_fast
        encoded = None
        if size <= (options.short_characters if is_fast else options.short_if_slow):
            encoded = self._on_the_loop(work)
        if encoded is None:
            encoded = await self._on_a_thread(work)
        if maker.encoder.is_fast:
            self._sample(maker, encoded)
        return encoded.ids

    def _on_the_loop(self, work: _Work) -> _Encoded | None:
        """Do it at once; None says that it needs more steps."""
        steps = min(_STEPS_ON_THE_LOOP, self._options.steps)
        try:
            encoded = work(self._allowance(steps))
        except OutOfStepsError:
            return None
        self.counts["on_the_loop"] += 1
        return encoded

    async def _on_a_thread(self, work: _Work) -> _Encoded:
        options = self._options
        if self._num_on_threads >= options.threads + options.most_waiting:
            raise NoTokensError("busy")
        self._num_on_threads += 1
        try:
            with move_on_after(options.wait_s):
                encoded = await run_sync(
                    lambda: work(self._allowance(options.steps)),
                    abandon_on_cancel=True,
                    limiter=self._limiter,
                )
                self.counts["on_threads"] += 1
                return encoded
        except OutOfStepsError:
            raise NoTokensError("too_slow") from None
        finally:
            self._num_on_threads -= 1
        raise NoTokensError("too_slow")

    def _allowance(self, steps: int) -> Allowance:
        return Allowance(steps, self._options.render_s, self._options.most_characters)

    def _sample(self, maker: PromptMaker, encoded: _Encoded) -> None:
        """Begin to compare one text in many, one at a time."""
        self._until_compared -= 1
        is_free = self._comparison is None or self._comparison.done()
        if self._until_compared <= 0 and is_free:
            self._until_compared = self._options.compare_every
            self._comparison = asyncio.get_running_loop().create_task(
                self._compare(maker, encoded)
            )

    async def _compare(self, maker: PromptMaker, encoded: _Encoded) -> None:
        agrees = partial(
            maker.encoder.agrees, encoded.text, encoded.ids, add_special_tokens=encoded.special
        )
        try:
            same = await run_sync(agrees, abandon_on_cancel=True, limiter=self._limiter)
        except NoTokensError:
            same = False
        self.counts["compared"] += 1
        self.counts["differed"] += not same
