"""Going back in place, and questions about requests' own tables, against the brute-force models.

The machines are those of the cache manager: requests of any groups live and die, and in between
some go back, some blocks are declared bad, and every answer is compared. The native side is
`CacheCore`.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.differential.machines import ByValueMachine
from tests.differential.tables_machine import TablesMachine


class ByValueTablesMachine(ByValueMachine):
    """Checkpoints are dropped with what is forgotten, and made again."""

    go_back = TablesMachine.go_back
    rewind = TablesMachine.rewind

    @rule(data=st.data())
    def recover(self, data: st.DataObject) -> None:
        """A request goes back."""
        TablesMachine.rewind(self, data)  # type: ignore[arg-type]


TestRequestTables = TablesMachine.TestCase
TestRequestTables.settings = settings(max_examples=40, stateful_step_count=20)
TestByValueTables = ByValueTablesMachine.TestCase
TestByValueTables.settings = settings(max_examples=25, stateful_step_count=20)
