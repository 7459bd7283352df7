"""Conversations of many turns with shared beginnings; each turn repeats all before it."""

from random import Random
from typing import Final

NUM_INSTRUCTIONS: Final = 6
LONGEST: Final = 1_000
"""Tokens of a prompt; a conversation that is longer ends."""
OUTPUT: Final = 8


class Conversation:
    """One conversation: `prompt` is what its next turn sends."""

    def __init__(self, instructions: list[int], random: Random) -> None:
        self._random = random
        self.prompt = list(instructions)
        self._say()

    def go_on(self, outputs: list[int]) -> None:
        """Note what was answered, and say something more."""
        self.prompt += outputs
        self._say()

    def is_over(self) -> bool:
        """Whether its next prompt would be too long."""
        return len(self.prompt) > LONGEST

    def _say(self) -> None:
        self.prompt += tokens(self._random, self._random.randrange(10, 160))


class Traffic:
    """Some conversations at a time, of which a random one goes on; another follows one that ends.

    Traffic of one seed but several `stream`s shares its instructions and nothing else.
    """

    def __init__(self, seed: str, stream: int, num_conversations: int) -> None:
        shared = Random(seed)
        self._instructions = [
            tokens(shared, shared.randrange(60, 420)) for _ in range(NUM_INSTRUCTIONS)
        ]
        self._random = Random(f"{seed} {stream}")
        self._open = [self._begin() for _ in range(num_conversations)]

    def next(self) -> Conversation:
        """Return the conversation whose turn it is."""
        at = self._random.randrange(len(self._open))
        if self._open[at].is_over():
            self._open[at] = self._begin()
        return self._open[at]

    def pause(self) -> float:
        """Return how many seconds a reader thinks before the next turn."""
        return self._random.uniform(0, 0.05)

    def _begin(self) -> Conversation:
        return Conversation(self._random.choice(self._instructions), self._random)


def tokens(random: Random, count: int) -> list[int]:
    """Return so many token ids that every tiny model has."""
    return [random.randrange(10, 1_000) for _ in range(count)]
