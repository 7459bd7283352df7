"""What a faultless engine would compute: a number for every prefix, and the token that follows it.

Invariant: two prefixes have the same number if and only if their tokens and salts are the same,
and the next token depends on the prefix alone. So a request's outputs are known before it runs.
"""

from collections.abc import Sequence
from typing import Final

from kvbraid.hashing import ExtraKeys

VOCABULARY: Final = 40
"""Tokens are 0 to 39; a token above that was computed from garbage."""
GARBAGE_TOKEN: Final = 1_000


class Truth:
    """The prefixes of one engine's life."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._mixed = [1]

    def child(self, node: int, token: int) -> int:
        """The number of the prefix that `token` extends; 0 is the empty one."""
        found = self._children.get((node, token))
        if found is None:
            found = self._children[node, token] = len(self._mixed)
            self._mixed.append((self._mixed[node] * 1_000_003 ^ (token + 7)) % (1 << 61))
        return found

    def root(self, salt: str | None = None) -> int:
        """The empty prefix, one for each salt."""
        return 0 if salt is None else self.child(0, VOCABULARY + int(salt))

    def next_token(self, node: int) -> int:
        mixed = self._mixed[node]
        return (mixed ^ mixed >> 17 ^ mixed >> 31) % VOCABULARY

    def life(self, prompt: Sequence[int], num_outputs: int, salt: str | None = None) -> "Life":
        """All that a request with this prompt will compute."""
        tokens, node, nodes = list(prompt), self.root(salt), []
        for token in prompt:
            node = self.child(node, token)
            nodes.append(node)
        for _ in range(num_outputs):
            tokens.append(self.next_token(node))
            node = self.child(node, tokens[-1])
            nodes.append(node)
        return Life(tokens, nodes, len(prompt), salt)


class Life:
    """All tokens that a request will ever have, and the number of each prefix of them.

    `nodes[t]` is the prefix that ends with token t; `extra` tells the same tokens apart.
    """

    def __init__(
        self, tokens: list[int], nodes: list[int], num_prompt_tokens: int, salt: str | None
    ) -> None:
        self.tokens = tokens
        self.nodes = nodes
        self.num_prompt_tokens = num_prompt_tokens
        self.extra = ExtraKeys(cache_salt=salt)

    @property
    def outputs(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]
