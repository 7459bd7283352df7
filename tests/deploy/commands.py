"""Commands of files of deploy/, run as they stand there but for where things lie."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


@contextmanager
def started(
    command: Sequence[str], *, env: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command that serves; yield its process and the address that it says."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            assert first.startswith("listening on http://"), first
            yield process, first.split()[-1]
        finally:
            process.kill()
