"""Where the prompt tokens of one request came from: counted once, told with its first output.

Invariant: cached + external + computed = prompt tokens, and each prompt token counts by how the
request got it last. What it computed or loaded itself does not become a hit because it was
preempted. What a recovery takes back counts by how it is got again. The last prompt token is
always computed. After the report nothing changes it. Recomputed tokens are counted apart.
"""

from enum import Enum
from typing import Final, NamedTuple

from kvbraid.reading import POSITIVE, check, whole


class Counts(NamedTuple):
    """Prompt tokens by origin: found in the cache, loaded from a tier, computed."""

    cached: int
    external: int
    computed: int


class _Origin(Enum):
    CACHED = 0
    EXTERNAL = 1
    COMPUTED = 2


class PromptCounts:
    """The counts of one request; all arguments are in tokens from its start.

    Attributes:
        recomputed: Tokens that recoveries took back, of the output too.

    Raises:
        InvalidValueError: There are no prompt tokens.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        check("num_prompt_tokens", num_prompt_tokens, POSITIVE)
        self.num_prompt_tokens: Final = num_prompt_tokens
        self._parts: list[tuple[int, _Origin]] = []  # Ends, ascending, and what lies before them.
        self._is_reported = False
        self.recomputed = 0

    def started(self, num_local_tokens: int, num_loaded_tokens: int = 0) -> None:
        """Note how a run starts: what it found in the cache, and what a load brings after that.

        Tokens of the hit that the request had before, however it got them, keep their origin.
        """
        check("num_local_tokens", num_local_tokens, whole())
        check("num_loaded_tokens", num_loaded_tokens, whole())
        self._cut(num_local_tokens)
        self._reach(num_local_tokens, _Origin.CACHED)
        self._reach(num_local_tokens + num_loaded_tokens, _Origin.EXTERNAL)

    def computed(self, num_tokens: int) -> None:
        """Note that all tokens before `num_tokens` are processed: those not had yet, by computing.

        It has to be called before a preemption only.
        """
        check("num_tokens", num_tokens, whole())
        self._reach(num_tokens, _Origin.COMPUTED)

    def recovered(self, resume: int, num_recomputed_tokens: int) -> None:
        """Note a recovery: tokens after the first `resume` are lost, and counted as recomputed."""
        check("resume", resume, whole())
        check("num_recomputed_tokens", num_recomputed_tokens, whole())
        self._cut(resume)
        self.recomputed += num_recomputed_tokens

    def report(self) -> Counts | None:
        """Return the counts with the first output token; None at every later call."""
        if self._is_reported:
            return None
        self._is_reported = True
        return self.now()

    def now(self) -> Counts:
        """Return the counts as they were reported, or would be now."""
        cached = external = start = 0
        for end, origin in self._parts:
            cached += (end - start) * (origin is _Origin.CACHED)
            external += (end - start) * (origin is _Origin.EXTERNAL)
            start = end
        return Counts(cached, external, self.num_prompt_tokens - cached - external)

    def check_integrity(self) -> None:
        """Assert the invariant of these counts."""
        ends = [0, *(end for end, _ in self._parts)]
        assert ends == sorted(set(ends)), f"the ends {ends} do not ascend"
        assert ends[-1] < self.num_prompt_tokens, "the last prompt token is computed"
        assert all(a[1] is not b[1] for a, b in zip(self._parts, self._parts[1:], strict=False))

    def _reach(self, end: int, origin: _Origin) -> None:
        """Let the tokens from the last end to this one have an origin, unless it is too late."""
        end = min(end, self.num_prompt_tokens - 1)
        if self._is_reported or end <= (self._parts[-1][0] if self._parts else 0):
            return
        if self._parts and self._parts[-1][1] is origin:
            self._parts.pop()
        self._parts.append((end, origin))

    def _cut(self, end: int) -> None:
        if self._is_reported:
            return
        while self._parts and self._parts[-1][0] > end:
            _, origin = self._parts.pop()
            self._reach(end, origin)
