"""The histogram of score latencies, which several threads count in."""

import threading

from kvbraid.service.http.metrics import LatencyHistogram


class CountsThatAreReadByTurns(list[int]):
    """Before the first reader has its count, another thread counts, if it may."""

    histogram: LatencyHistogram
    other: threading.Thread | None = None

    def __getitem__(self, index: object) -> int:  # type: ignore[override]
        assert isinstance(index, int)
        count = super().__getitem__(index)
        if self.other is None:
            self.other = threading.Thread(target=self.histogram.observe, args=(0.5,))
            self.other.start()
            self.other.join(timeout=0.2)  # It ends here, or waits for its turn.
        return count


def test_no_score_is_lost_when_two_threads_count_at_once() -> None:
    histogram = LatencyHistogram()
    counts = CountsThatAreReadByTurns(histogram._counts)
    counts.histogram = histogram
    histogram._counts = counts
    histogram.observe(0.5)
    assert counts.other is not None
    counts.other.join()
    (family,) = [histogram.family("score", "Scores.")]
    assert [s.value for s in family.samples if s.name == "score_count"] == [2.0]
