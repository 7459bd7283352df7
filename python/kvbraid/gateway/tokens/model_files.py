"""The files of a model that say how its prompts are made: tokenizer, names of tokens, templates.

They are read once, when the gateway starts. What is wrong with them is said then, in one line.
Nothing is downloaded, and nothing in them is run but a chat template in its sandbox.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbraid.errors import InvalidValueError, one_line
from kvbraid.gateway.tokens.chats import ChatRenderer
from kvbraid.gateway.tokens.encoding import Encoder
from kvbraid.gateway.tokens.messages import ContentFormat
from kvbraid.gateway.tokens.templates import ChatTemplate

_TOKENIZER: Final = "tokenizer.json"
_CONFIG: Final = "tokenizer_config.json"
_TEMPLATE: Final = "chat_template.jinja"
_OLD_TEMPLATE: Final = "chat_template.json"
_FURTHER_TEMPLATES: Final = "additional_chat_templates"
_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """Where a model's files are, and what its engine was started with that changes prompts.

    `folder` has its tokenizer.json. `template` is the engine's `--chat-template`, a file;
    `content_format` its `--chat-template-content-format`, unless that is `auto`; and
    `template_arguments` its `--default-chat-template-kwargs`. `fast` allows the package fastokens.
    """

    folder: Path
    template: Path | None = None
    content_format: ContentFormat | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    fast: bool = True


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """What makes the tokens of one model's prompts; None without a chat template."""

    encoder: Encoder
    chats: ChatRenderer | None


def read_files(files: TokenizerFiles) -> PromptMaker:
    """Read a model's files.

    Raises:
        InvalidValueError: A file is missing or wrong; the message says which, and what to do.
    """
    config = _object(files.folder / _CONFIG)
    encoder = Encoder(files.folder / _TOKENIZER, fast=files.fast)
    templates = {
        name: ChatTemplate(text, source) for name, text, source in _templates(files, config)
    }
    if not templates:
        return PromptMaker(encoder, None)
    chats = ChatRenderer(
        templates,
        _named_tokens(config),
        content_format=files.content_format,
        arguments=files.template_arguments,
    )
    return PromptMaker(encoder, chats)


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a tokenizer_config.json names, as a template gets them."""
    further = config.get("extra_special_tokens")
    given = {**config, **(further if isinstance(further, dict) else {})}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in given.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _templates(files: TokenizerFiles, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Each template's name, text and file; the first place that has any counts."""
    if files.template is not None:
        yield _DEFAULT, _text(files.template), str(files.template)
        return
    path = files.folder / _TEMPLATE
    if path.exists():
        yield _DEFAULT, _text(path), str(path)
        for further in sorted((files.folder / _FURTHER_TEMPLATES).glob("*.jinja")):
            yield further.stem, _text(further), str(further)
        return
    for name, given in ((_OLD_TEMPLATE, None), (_CONFIG, config)):
        path = files.folder / name
        found = (_object(path) if given is None else given).get("chat_template")
        if found is not None:
            yield from ((name, text, str(path)) for name, text in _named(found, path))
            return


def _named(found: object, path: Path) -> Iterator[tuple[str, str]]:
    """A template, or several by name: an object, or a list of objects."""
    if isinstance(found, list):
        try:
            found = {each["name"]: each["template"] for each in found}
        except (TypeError, KeyError):
            found = None
    if isinstance(found, str):
        found = {_DEFAULT: found}
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise InvalidValueError(
            f"{path}: chat_template is none; expected a text, or texts by name, as the model's own"
        )
    yield from found.items()


def _object(path: Path) -> dict[str, Any]:
    """The object of a JSON file, which is empty without the file."""
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(_text(path), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidValueError(one_line(f"{path}: {error}; give the model's own file")) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(one_line(f"{path}: {error}; give the model's own file")) from None
