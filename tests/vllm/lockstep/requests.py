"""Random requests that share prefixes: documents, conversations that go on, and resends.

Salts, adapters and images come from small sets, and a request that goes on from another usually
keeps them, so that extra keys separate caches and hits still happen.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys, Lora, MediaItem

from tests.vllm.lockstep.side import NewRequest

LORAS: Final = (Lora("poet", "adapters/poet"), Lora("clerk", "adapters/clerk"))
SALTS: Final = ("tenant-a", "tenant-b")
VOCABULARY: Final = 70_000  # Ids of one, two and three bytes when serialised.
NUM_REMEMBERED: Final = 8


@dataclass(frozen=True, slots=True)
class _Text:
    tokens: tuple[int, ...]
    extra: ExtraKeys


class Requests:
    """A stream of requests of at most `max_tokens` prompt tokens."""

    def __init__(self, random: Random, *, max_tokens: int, unit: int) -> None:
        self._random = random
        self._max_tokens = max_tokens
        self._unit = unit
        self._num_made = 0
        self._texts = [self._fresh_text() for _ in range(3)]

    def make(self) -> NewRequest:
        """Draw the next request."""
        random = self._random
        recent = self._texts[-3:] if random.random() < 0.6 else self._texts
        text = self._fresh_text() if random.random() < 0.12 else random.choice(recent)
        tokens = self._cut(text.tokens)
        extra = text.extra if random.random() < 0.9 else self._extra()
        key = self._num_made
        self._num_made += 1
        if random.random() < 0.5:
            self.remember(tokens, extra)  # Siblings come while it runs.
        session_id = f"session-{random.randrange(3)}" if random.random() < 0.2 else None
        return NewRequest(
            key=key,
            tokens=tokens,
            extra=_within(extra, len(tokens)),
            lora_id=None if extra.lora is None else 1 + LORAS.index(extra.lora),
            session_id=session_id,
        )

    def remember(self, tokens: tuple[int, ...], extra: ExtraKeys) -> None:
        """A later request may go on from here."""
        self._texts.append(_Text(tokens, extra))
        if len(self._texts) > NUM_REMEMBERED:
            self._texts.pop(self._random.randrange(len(self._texts)))

    def sample(self, count: int) -> tuple[int, ...]:
        """Return tokens as a model would sample them."""
        return tuple(self._random.randrange(VOCABULARY) for _ in range(count))

    def _fresh_text(self) -> _Text:
        return _Text(
            self.sample(self._random.randint(self._unit, self._max_tokens)), self._extra()
        )

    def _cut(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Resend, cut at a block end or anywhere, and usually go on."""
        random = self._random
        kept = random.choice(
            (
                len(tokens),
                len(tokens) // self._unit * self._unit,
                random.randint(1, len(tokens)),
                random.randint(1, 1 + len(tokens) // self._unit) * self._unit,
            )
        )
        more = random.choice((0, 1, random.randint(1, 2 * self._unit), self._unit))
        return (tokens[: max(1, kept)] + self.sample(more))[: self._max_tokens]

    def _extra(self) -> ExtraKeys:
        random = self._random
        if random.random() < 0.6:
            return NO_EXTRA_KEYS
        return ExtraKeys(
            lora=random.choice((None, None, *LORAS)),
            cache_salt=random.choice((None, None, *SALTS)),
            media=self._media() if random.random() < 0.4 else (),
        )

    def _media(self) -> tuple[MediaItem, ...]:
        """Images one after another, each of its own content."""
        items: list[MediaItem] = []
        end = 0
        for name in self._random.sample(("cat", "dog", "map", "chart"), 2):
            offset = end + self._random.randint(0, 2 * self._unit)
            length = self._random.randint(1, 2 * self._unit)
            items.append(MediaItem(name, offset, length))
            end = offset + length
        return tuple(items)


def _within(extra: ExtraKeys, num_tokens: int) -> ExtraKeys:
    """Drop the images that a shorter prompt does not hold in full."""
    media = tuple(item for item in extra.media if item.offset + item.length <= num_tokens)
    return ExtraKeys(lora=extra.lora, cache_salt=extra.cache_salt, media=media)
