"""The `kvbraid` command. If the extra `serve` is missing, it says so in one line."""

import sys

from kvbraid.extras import require


def main() -> None:
    """Run the command line and exit; the status is 2 if the extra is missing."""
    try:
        require("serve", "this command")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"kvbraid: {error}\n")
        sys.exit(2)
    from kvbraid import cli

    cli.main()


if __name__ == "__main__":
    main()
