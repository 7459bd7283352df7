"""What commands have in common: text that is UTF-8, secrets, and the options of an engine."""

import json
import os
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from kvbraid.errors import InvalidValueError, shortened
from kvbraid.extras import require

if TYPE_CHECKING:
    from kvbraid.models import EngineOptions

Command: TypeAlias = Callable[..., Any]


class _Characters(click.ParamType[str]):
    """Text of the command line; bytes that are not UTF-8 are refused in one line."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            name = "an argument" if param is None else param.get_error_hint(ctx).strip("'")
            raise InvalidValueError(f"{name} has bytes that are not UTF-8; give text") from None
        return value


TEXT: Final = _Characters()


class _Setting(click.ParamType[tuple[str, object]]):
    """NAME=JSON: a field, and the value that it gets."""

    name = "setting"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, object]:
        text = TEXT.convert(value, param, ctx)
        name, separator, written = text.partition("=")
        try:
            return name, json.loads(written if separator else "")
        except ValueError:
            raise InvalidValueError(
                f"--set {shortened(text)}; expected NAME=JSON, as alignment=64 or "
                "dialect='\"sglang\"'"
            ) from None


SETTING: Final = _Setting()


class Secret(click.Option):
    """An option whose environment variable counts as given even if empty; empty is refused."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return what the variable has, even if that is nothing."""
        return os.environ.get(self.envvar) if isinstance(self.envvar, str) else None


def require_extra(extra: str, who: str, *names: str) -> None:
    """Refuse a command in one line if its extra, or one of these modules of it, is missing."""
    try:
        require(extra, who, *names)
    except ModuleNotFoundError as error:
        raise InvalidValueError(str(error)) from None


def taken(options: dict[str, Any]) -> "EngineOptions":
    """Take the options that `engine` has added out of all options of a command."""
    from kvbraid.models import EngineOptions

    names = {field.name for field in fields(EngineOptions)} & options.keys()
    given = {name: options.pop(name) for name in names}
    return EngineOptions(**{name: value for name, value in given.items() if value is not None})


def engine(note: str = "") -> Callable[[Command], Command]:
    """Add the options that decide pages; their names are those of `EngineOptions`.

    `note` ends the help of each.
    """
    options = (
        click.option(
            "--block-size", type=click.IntRange(1), help=f"Tokens of an attention block.{note}"
        ),
        click.option(
            "--kernel-block", "kernel_block_size", type=click.IntRange(1),
            help=f"Tokens of the attention kernel's block; 16 if not given.{note}",
        ),
        click.option(
            "--tp", "num_ranks", type=click.IntRange(1),
            help=f"Tensor-parallel ranks; sizes are of one rank.{note}",
        ),
        click.option(
            "--dtype", "cache_dtype", metavar="NAME",
            help=f"Type of keys and values instead of the model's, as an engine names it.{note}",
        ),
        click.option(
            "--state-dtype", type=click.Choice(["bfloat16", "float16", "float32"]),
            help=f"Type of recurrent state matrices instead of the engine's.{note}",
        ),
        click.option(
            "--no-hybrid", "hybrid", flag_value=False, default=None,
            help="The engine runs with --disable-hybrid-kv-cache-manager: windows and chunks are "
            f"kept in full.{note}",
        ),
    )  # fmt: skip

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
