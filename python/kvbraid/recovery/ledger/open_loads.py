"""Of which loads a failure may still be reported, in steps."""

from typing import Final, NamedTuple


class Moment(NamedTuple):
    """When something was noted: after how many handings-out, and after how many loads."""

    time: int = 0
    num_loads: int = 0


BEGINNING: Final = Moment()


class OpenLoads:
    """The loads that have not ended, and those that have ended a few steps ago.

    Invariant: reports on a load may come until `late_steps` steps have been processed after its
    end. Without late steps, the reports that end it are the last ones.
    """

    def __init__(self, late_steps: int) -> None:
        self._late_steps: Final = late_steps
        self._left: Final[dict[int, int | None]] = {}  # Steps; None before the end.

    def begin(self, number: int) -> None:
        """Note that a load begins. Numbers ascend."""
        self._left[number] = None

    def end(self, number: int) -> None:
        """Note that a load has ended."""
        if number in self._left:
            self._left[number] = self._late_steps

    def processed(self) -> None:
        """Note that a step was processed."""
        for number, left in [*self._left.items()]:
            if left == 0:
                del self._left[number]
            elif left is not None:
                self._left[number] = left - 1

    def close(self) -> None:
        """Note that other reports come than those that ended loads."""
        if not self._late_steps:
            self.processed()

    def concern(self, moment: Moment) -> bool:
        """Whether a report may still come on a load that had begun by then."""
        return next(iter(self._left), moment.num_loads) < moment.num_loads

    def __contains__(self, number: int) -> bool:
        """Whether a report may still come on a load."""
        return number in self._left
