"""A model's folder: where templates and names of tokens stand, and what is wrong with a file."""

import json
from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.gateway.prompts import NoTokensError
from kvbraid.gateway.tokens.bodies import PromptBody, read_body
from kvbraid.gateway.tokens.model_files import TokenizerFiles, read_files
from kvbraid.gateway.tokens.templates import Allowance

from tests.unit.gateway.model_folders import CONFIG, write_model

NAMED = [{"name": "default", "template": "by default"}, {"name": "tool_use", "template": "tools"}]


def rendered(files: TokenizerFiles, **fields: object) -> str:
    chats = read_files(files).chats
    assert chats is not None
    body = {"messages": [{"role": "user", "content": "a"}], **fields}
    return chats.render(asked(body), Allowance(1000, 60.0, 1000))


def asked(body: object) -> PromptBody:
    return read_body(json.dumps(body).encode())


def test_without_a_template_there_are_no_chats(tmp_path: Path) -> None:
    assert read_files(TokenizerFiles(folder=write_model(tmp_path))).chats is None


def test_the_first_place_that_has_a_template_counts(tmp_path: Path) -> None:
    config = {**CONFIG, "chat_template": "of the config"}
    files = TokenizerFiles(folder=write_model(tmp_path, config=config))
    assert rendered(files) == "of the config"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of the old file"}')
    assert rendered(files) == "of the old file"
    (tmp_path / "chat_template.jinja").write_text("of the file")
    assert rendered(files) == "of the file"
    given = tmp_path / "given.jinja"
    given.write_text("given")
    assert rendered(TokenizerFiles(folder=tmp_path, template=given)) == "given"


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize("found", [NAMED, {each["name"]: each["template"] for each in NAMED}])
def test_a_model_may_have_a_template_of_its_own_for_tools(tmp_path: Path, found: object) -> None:
    files = TokenizerFiles(folder=write_model(tmp_path, config={**CONFIG, "chat_template": found}))
    assert rendered(files) == "by default"
    assert rendered(files, tools=TOOLS) == "tools"


def test_further_templates_stand_in_a_folder(tmp_path: Path) -> None:
    files = TokenizerFiles(folder=write_model(tmp_path, "by default"))
    assert rendered(files, tools=TOOLS) == "by default"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert rendered(files, tools=TOOLS) == "tools"


def test_without_a_default_there_is_no_template(tmp_path: Path) -> None:
    config = {**CONFIG, "chat_template": {"rag": "documents"}}
    with pytest.raises(NoTokensError, match="no_template"):
        rendered(TokenizerFiles(folder=write_model(tmp_path, config=config)))


def test_templates_may_name_special_tokens(tmp_path: Path) -> None:
    config = {
        **CONFIG,
        "pad_token": None,
        "image_token": "<i>",
        "extra_special_tokens": {"end_token": "<e>"},
        "add_bos_token": True,
    }
    template = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ image_token }}{{ end_token }}"
    files = TokenizerFiles(folder=write_model(tmp_path, template, config=config))
    assert rendered(files) == "<s></s><i><e>"
    assert rendered(files, chat_template_kwargs={"bos_token": "!"}) == "!</s><i><e>"


def test_a_folder_needs_no_config(tmp_path: Path) -> None:
    write_model(tmp_path, "a{{ bos_token }}")
    (tmp_path / "tokenizer_config.json").unlink()
    assert rendered(TokenizerFiles(folder=tmp_path)) == "a"


def test_an_engine_may_have_been_told_what_templates_get(tmp_path: Path) -> None:
    template = "{{ x }} {{ enable_thinking }} {{ messages[0].content is string }}"
    files = TokenizerFiles(
        folder=write_model(tmp_path, template),
        content_format="openai",
        template_arguments={"x": 1, "enable_thinking": False},
    )
    assert rendered(files) == "1 False False"
    own = {"x": 2, "enable_thinking": None}
    assert rendered(files, chat_template_kwargs=own) == "2 False False"
    assert rendered(files, reasoning_effort="high") == "1 True False"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer_config.json", b"{", r"tokenizer_config\.json: .*; give the model's own file"),
        ("tokenizer_config.json", b"[]", r"tokenizer_config\.json: Expected `object`"),
        ("tokenizer_config.json", b"\xff", "'utf-8' codec can't decode"),
        ("tokenizer_config.json", b"[" * 100_000, r"tokenizer_config\.json: "),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template is none; expected"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": 1}]}', "chat_template is none"),
        ("tokenizer_config.json", b'{"chat_template": {"a": 1}}', "chat_template is none"),
        ("chat_template.json", b"5", r"chat_template\.json: Expected `object`"),
        ("chat_template.jinja", b"{% if", r"chat_template\.jinja: no chat template: "),
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja: 'utf-8'"),
        ("tokenizer.json", b"{}", r"tokenizer\.json: .*; give a model's tokenizer\.json"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_at_the_start(
    tmp_path: Path, name: str, text: bytes, message: str
) -> None:
    (write_model(tmp_path) / name).write_bytes(text)
    with pytest.raises(InvalidValueError, match=message) as refused:
        read_files(TokenizerFiles(folder=tmp_path))
    assert "\n" not in str(refused.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"absent/tokenizer\.json: No such file"):
        read_files(TokenizerFiles(folder=tmp_path / "absent"))
    files = TokenizerFiles(folder=write_model(tmp_path), template=tmp_path / "absent.jinja")
    with pytest.raises(InvalidValueError, match=r"absent\.jinja: .*No such file"):
        read_files(files)
