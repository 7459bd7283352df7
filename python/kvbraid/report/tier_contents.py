"""What is in the directory of a tier, as a table; progress while it is read."""

from dataclasses import asdict
from pathlib import Path

from kvbraid.report.console import progress, stdout
from kvbraid.report.tables import Column, Listing, print_listing
from kvbraid.transfer.disk.inspection import TierContents, inspect_tier


def inspect_with_progress(directory: Path, *, verify: bool, remove: bool) -> TierContents:
    """Look at all records of a directory; progress goes to stderr."""
    with progress() as bars:
        task = bars.add_task(directory.name, total=None)

        def show(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        return inspect_tier(directory, verify=verify, remove=remove, progress=show)


def show_contents(found: TierContents) -> None:
    """Print what was found as a table of one row."""
    counts = asdict(found)
    columns = tuple(map(Column, counts))
    row = tuple(f"{count:,}" for count in counts.values())
    print_listing(stdout(), Listing(columns=columns, rows=(row,)))
