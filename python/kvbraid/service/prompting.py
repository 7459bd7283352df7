"""The `[tokens.MODEL]` tables of fleet.toml: where `kvbraid route` finds what makes token ids.

Only the gateway reads the files; this is here because one file configures both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_FilePath = Annotated[str, Meta(min_length=1)]


class TokensTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model's files, and what its engine was started with that changes prompts; or an engine.

    `folder` has the tokenizer.json. `template` is the engine's `--chat-template`, a file,
    `content_format` its `--chat-template-content-format`, and `template_arguments` its
    `--default-chat-template-kwargs`. `fast` allows the package fastokens. Paths are relative to
    fleet.toml. `engine` is the URL of one that is asked instead, and nothing else is given then.
    """

    folder: _FilePath | None = None
    engine: str | None = None
    template: _FilePath | None = None
    content_format: Literal["auto", "string", "openai"] = "auto"
    template_arguments: dict[str, Any] = {}
    fast: bool = True


def beside(tables: Mapping[str, TokensTable], folder: Path) -> dict[str, TokensTable]:
    """Return the tables with paths that begin at the folder of the fleet.toml."""
    return {
        model: msgspec.structs.replace(
            table,
            folder=None if table.folder is None else str(folder / table.folder),
            template=None if table.template is None else str(folder / table.template),
        )
        for model, table in tables.items()
    }
