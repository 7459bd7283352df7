"""Traffic that separates policies of retention: what requests ask for, one after the other.

Invariant: a workload is a function of a source of texts (the seed) and of a `Shape`. Nothing here
knows a cache. Tests play the same workloads with other seeds and shapes.
"""

import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

Tokens: TypeAlias = "array[int]"


class Texts:
    """Random texts: no two of them share their first block, in practice."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def text(self, num_tokens: int) -> Tokens:
        """Return a text of so many tokens."""
        return array("I", self.random.randbytes(4 * num_tokens))

    def texts(self, count: int, num_tokens: int) -> list[Tokens]:
        """Return several texts of the same length."""
        return [self.text(num_tokens) for _ in range(count)]

    def chance(self, share: float) -> bool:
        """Decide with this probability."""
        return self.random.random() < share


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, and how many of its tokens count as reusable; 0: it is not looked at."""

    tokens: Tokens
    reusable: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Factors for the lengths of texts, and for how many there are."""

    length: float = 1.0
    count: float = 1.0

    def tokens(self, num_tokens: int) -> int:
        """Scale the length of a text."""
        return max(1, round(self.length * num_tokens))

    def number(self, number: int) -> int:
        """Scale a number of texts."""
        return max(1, round(self.count * number))


Prompts: TypeAlias = Iterator[Tokens]
Workload: TypeAlias = Callable[[Texts, Shape], Prompts]


def hot_scan(texts: Texts, shape: Shape, share: float = 0.25) -> Prompts:
    """One system prompt among prompts that never come back."""
    system = texts.text(shape.tokens(2_000))
    while True:
        if texts.chance(share):
            yield system + texts.text(shape.tokens(200))
        else:
            yield texts.text(shape.tokens(3_000))


def hot_scan_rare(texts: Texts, shape: Shape) -> Prompts:
    """The same, with a system prompt that is rarely used."""
    return hot_scan(texts, shape, 0.07)


def shift(texts: Texts, shape: Shape) -> Prompts:
    """Fifteen shared prefixes, replaced by new ones every 150 requests."""
    while True:
        prefixes = texts.texts(shape.number(15), shape.tokens(1_500))
        for _ in range(shape.number(150)):
            yield texts.random.choice(prefixes) + texts.text(shape.tokens(150))


def short_long(texts: Texts, shape: Shape) -> Prompts:
    """Many short shared prefixes, and now and then one of three long ones."""
    short = texts.texts(shape.number(150), shape.tokens(200))
    long = texts.texts(shape.number(3), shape.tokens(12_000))
    while True:
        if texts.chance(0.03):
            yield texts.random.choice(long) + texts.text(shape.tokens(100))
        else:
            yield texts.random.choice(short) + texts.text(shape.tokens(60))


def short_only(texts: Texts, shape: Shape) -> Prompts:
    """Many short shared prefixes, all used alike."""
    prefixes = texts.texts(shape.number(150), shape.tokens(100))
    while True:
        yield texts.random.choice(prefixes) + texts.text(shape.tokens(60))


def giant(texts: Texts, shape: Shape) -> Prompts:
    """A few chats, and every 25 requests a giant prompt that never comes back."""
    chats = texts.texts(shape.number(12), shape.tokens(600))
    while True:
        for _ in range(24):
            at = texts.random.randrange(len(chats))
            chats[at] = chats[at] + texts.text(shape.tokens(120))
            yield chats[at]
            if len(chats[at]) > shape.tokens(4_000):
                chats[at] = texts.text(shape.tokens(600))
        yield texts.text(shape.tokens(16_000))


def loop(texts: Texts, shape: Shape) -> Prompts:
    """Forty prefixes, one after the other: least recently used is the worst order there is."""
    prefixes = texts.texts(shape.number(40), shape.tokens(1_500))
    while True:
        for prefix in prefixes:
            yield prefix + texts.text(shape.tokens(50))


def chat(texts: Texts, shape: Shape, parallel: int = 20) -> Prompts:
    """Chats that go on where they ended; one in five begins anew."""
    chats = texts.texts(shape.number(parallel), shape.tokens(500))
    while True:
        at = texts.random.randrange(len(chats))
        is_new = texts.chance(0.2)
        more = texts.text(shape.tokens(500 if is_new else 300))
        chats[at] = more if is_new else chats[at] + more
        yield chats[at]


def tree(texts: Texts, shape: Shape) -> Prompts:
    """One root, twelve branches, and leaves that never come back."""
    root = texts.text(shape.tokens(1_000))
    branches = [root + branch for branch in texts.texts(shape.number(12), shape.tokens(1_000))]
    while True:
        yield texts.random.choice(branches) + texts.text(shape.tokens(400))


def retry(texts: Texts, shape: Shape) -> Prompts:
    """Each prompt twice in a row and never again, and a shared prefix now and then."""
    hot = texts.text(shape.tokens(3_000))
    while True:
        for number in range(6):
            prompt = texts.text(shape.tokens(1_500))
            yield prompt
            yield prompt + texts.text(shape.tokens(20))
            if not number:
                yield hot + texts.text(shape.tokens(50))


def turning(texts: Texts, shape: Shape) -> Prompts:
    """Chats for 500 requests, then many requests over shared prefixes, then chats again."""
    while True:
        yield from islice(chat(texts, shape, 15), 500)
        prefixes = texts.texts(shape.number(25), shape.tokens(1_500))
        for _ in range(500):
            yield texts.random.choice(prefixes) + texts.text(shape.tokens(100))


def burst(texts: Texts, shape: Shape) -> Prompts:
    """A long prefix is used ten times in a row and never again; a few others are used steadily."""
    steady = texts.texts(shape.number(12), shape.tokens(1_200))
    while True:
        long = texts.text(shape.tokens(9_000))
        for _ in range(10):
            yield long + texts.text(shape.tokens(40))
        for _ in range(30):
            yield texts.random.choice(steady) + texts.text(shape.tokens(50))


def zipf(texts: Texts, shape: Shape) -> Prompts:
    """Two hundred prefixes, the n-th used in proportion to 1/n."""
    prefixes = texts.texts(shape.number(200), shape.tokens(1_000))
    weights = [1 / (rank + 1) for rank in range(len(prefixes))]
    while True:
        yield texts.random.choices(prefixes, weights)[0] + texts.text(shape.tokens(100))


def never(texts: Texts, shape: Shape) -> Prompts:
    """Nothing ever comes back."""
    while True:
        yield texts.text(shape.tokens(2_000))


WORKLOADS: Final[dict[str, Workload]] = {
    workload.__name__: workload
    for workload in (
        hot_scan,
        hot_scan_rare,
        shift,
        short_long,
        short_only,
        giant,
        loop,
        chat,
        tree,
        retry,
        turning,
        burst,
        zipf,
        never,
    )
}


def asks(workload: Workload, seed: str, num_requests: int, shape: Shape = Shape()) -> list[Ask]:
    """Return the first requests of a workload; all their tokens count as reusable."""
    prompts = islice(workload(Texts(seed), shape), num_requests)
    return [Ask(prompt, len(prompt)) for prompt in prompts]


def hot_prefix(seed: str, distance: int, num_uses: int, unit: int) -> Iterator[Ask]:
    """Yield uses of one prefix of 900 tokens, `distance` one-off prompts of 1 000 apart.

    Only the whole units of the prefix count as reusable.
    """
    texts = Texts(seed)
    prefix = texts.text(900)
    for _ in range(num_uses):
        yield Ask(prefix + texts.text(100), len(prefix) // unit * unit)
        for _ in range(distance):
            yield Ask(texts.text(1_000), 0)


def second_requests(
    seed: str, distance: int, num_prefixes: int, unit: int, fill: int = 400
) -> Iterator[Ask]:
    """Yield pairs of requests that share 900 tokens, on a pool that one-off prompts have filled.

    `distance` prompts come between the two, and only the second one of each pair counts.
    """
    texts = Texts(seed)
    for _ in range(fill):
        yield Ask(texts.text(1_000), 0)
    for _ in range(num_prefixes):
        prefix = texts.text(900)
        for reusable in (0, len(prefix) // unit * unit):
            yield Ask(prefix + texts.text(100), reusable)
            for _ in range(distance):
                yield Ask(texts.text(1_000), 0)
