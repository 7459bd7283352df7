"""What is open until somebody closes it: `with` does so at its end, whatever happens inside."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager whose end is `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Give back what is open."""
