"""The `kvbraid` command, where the extra `serve` may be missing: then one line says so."""

import sys

from kvbraid.extras import require_serve


def main() -> None:
    """Run the command line and exit; with status 2 where the extra is missing."""
    try:
        require_serve("this command")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"kvbraid: {error}\n")
        sys.exit(2)
    from kvbraid import cli

    cli.main()


if __name__ == "__main__":
    main()
