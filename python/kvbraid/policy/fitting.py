"""What prefills turn out to take: coefficients from requests that met no other prompt.

    took - decoding  =  fixed + scale * (per_token * computed + per_pair * pairs)

`fixed` and `scale` are fitted. What a pair costs beside a token is the model's, and stays as it
was given, like loading and decoding. Both come from medians, so what a quarter of the samples
says makes little difference (Theil's incomplete method: the slopes from each sample of the lower
half to one of the upper half). Invariant: a fit keeps the last WINDOW samples at most, and is a
function of them; its scale is between 1/MOST_SCALE and MOST_SCALE.
"""

from collections import deque
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import median
from typing import Final, Literal, NamedTuple, TypeAlias

from kvbraid.policy.seconds import MOST_SECONDS, Seconds

WINDOW: Final = 128
LEAST: Final = 32
"""So many samples are needed before a fit replaces what was given."""
EVERY: Final = 8
"""A fit is made anew after so many samples."""
MOST_SCALE: Final = 100.0
_SPREAD: Final = 0.5  # How far the halves are apart, beside the median work, to tell a slope.
_PIECES: Final = 50  # An answer that goes on for a smaller part of its wait came in one piece.

FitOutcome: TypeAlias = Literal["fit_samples", "fit_not_reported", "fit_impossible"]
"""What became of a measured request; each is counted under this name."""


class Quality(NamedTuple):
    """How well coefficients tell the samples that they rest on: medians over these, in seconds.

    `took` is what a prefill took, `error` how far the fit is off, `given_error` how far the
    coefficients are off that were given.
    """

    took: float
    error: float
    given_error: float


class Fitted(NamedTuple):
    """Coefficients, and the number of samples that they rest on: 0 if they are the given ones."""

    seconds: Seconds
    num_samples: int
    quality: Quality | None = None


class Fit:
    """The fit of one model; `now` is what it has come to."""

    def __init__(self, given: Seconds) -> None:
        self.given = given
        self._work = replace(given, fixed=0.0)
        self.now = Fitted(given, 0)
        self._samples: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # Work, what it took.
        self._num_new = 0

    def add(self, tokens: int, cached: int, running: int, took: float) -> bool:
        """Take a prefill of so many tokens, which reused `cached` while `running` decoded.

        Returns:
            Whether there can be such a prefill; if not, nothing has changed.
        """
        if not (0 <= cached < tokens and 0 < took <= MOST_SECONDS):
            return False
        work = self._work.prefill(tokens, cached)
        alone = took - self.given.decoding(tokens, cached, running)
        if not (0 < work < inf and isfinite(alone)):
            return False
        self._samples.append((work, alone))
        self._num_new += 1
        if len(self._samples) >= LEAST and self._num_new >= EVERY:
            self._num_new = 0
            self.now = self._fitted()
        return True

    @property
    def num_kept(self) -> int:
        """How many samples there are, also before they are enough for a fit."""
        return len(self._samples)

    def _fitted(self) -> Fitted:
        given, samples = self.given, sorted(self._samples)
        half = len(samples) // 2
        pairs = list(zip(samples[:half], samples[-half:], strict=True))
        works = [work for work, _ in samples]
        if median(high[0] - low[0] for low, high in pairs) > _SPREAD * median(works):
            slopes = [(b - a) / (high - low) for (low, a), (high, b) in pairs if high > low]
            scale = _bounded(median(slopes))
            fixed = median(took - scale * work for work, took in samples)
        else:  # Prompts of one length do not tell how much of it is fixed.
            scale = _bounded(median(took / (given.fixed + work) for work, took in samples))
            fixed = scale * given.fixed
        fixed = max(fixed, 0.0)
        seconds = replace(
            given,
            fixed=fixed,
            per_token=min(scale * given.per_token, MOST_SECONDS),
            per_pair=min(scale * given.per_pair, MOST_SECONDS),
        )
        quality = Quality(
            took=median(took for _, took in samples),
            error=median(abs(took - fixed - scale * work) for work, took in samples),
            given_error=median(abs(took - given.fixed - work) for work, took in samples),
        )
        return Fitted(seconds, len(samples), quality)

    def check_integrity(self) -> None:
        """Assert that what is kept and said is bounded. For tests."""
        seconds, num, quality = self.now
        given = self.given
        assert (quality is None) is (num == 0)
        assert quality is None or min(quality.error, quality.given_error) >= 0
        assert num == 0 or LEAST <= num <= len(self._samples) <= WINDOW
        assert self._num_new < EVERY or len(self._samples) < LEAST
        most = MOST_SCALE * (1 + 1e-9)
        for mine, theirs in (
            (seconds.per_token, given.per_token),
            (seconds.per_pair, given.per_pair),
        ):
            assert theirs / most <= mine <= theirs * most
        assert seconds.prefill(2, 0) > 0
        assert num or seconds == given


def _bounded(scale: float) -> float:
    return min(max(scale, 1 / MOST_SCALE), MOST_SCALE)


@dataclass(slots=True)
class Measured:
    """A request that was booked `at` a rank where no other prompt was, and is in flight."""

    fit: Fit
    tokens: int
    running: int
    at: float
    first_token: float | None = None

    def end(self, cached: int | None, now: float) -> FitOutcome:
        """Take the request as a sample, if all was reported; `cached` is what it reused.

        An answer in one piece has its first byte when it is complete, which says nothing of a
        prefill: what comes with the end is no first token.
        """
        if cached is None or self.first_token is None:
            return "fit_not_reported"
        took = self.first_token - self.at
        if now - self.first_token < took / _PIECES:
            return "fit_not_reported"
        taken = self.fit.add(self.tokens, cached, self.running, took)
        return "fit_samples" if taken else "fit_impossible"
