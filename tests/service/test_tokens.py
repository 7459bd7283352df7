"""POST /v1/tokens: the ids that a request's prompt would have, or why there are none."""

from pathlib import Path

import httpx
import pytest
from kvbraid.gateway.prompts import token_ids_of
from kvbraid.service.http.app import Application
from kvbraid.service.registry import Service
from tokenizers import Tokenizer

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.in_process import TestClient
from tests.service.listed_tokens import ListedTokens
from tests.service.score_app import refusal
from tests.service.serving import ONE_POD, serving
from tests.unit.gateway.model_folders import TURNS, write_model

TEXT = "Which blocks of this prompt are held?"


def test_a_gateway_makes_the_ids_of_texts_and_chats(tmp_path: Path) -> None:
    write_model(tmp_path / "model", template=TURNS)
    config = tmp_path / "fleet.toml"
    pod = ONE_POD.format(folder=tmp_path, url="http://127.0.0.1:9")
    config.write_text(f'{pod}\n[tokens.m]\nfolder = "model"\n')
    chat = [{"role": "user", "content": TEXT}]
    with serving("--config", str(config), name="route") as (_, url):
        answers = [
            httpx.post(f"{url}/v1/tokens", json={"model": "m", **prompt}).json()
            for prompt in ({"prompt": TEXT}, {"messages": chat})
        ]
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    text, turns = (answer["token_ids"] for answer in answers)
    assert text == tokenizer.encode(TEXT).ids
    whole = f"<|start|>user\n{TEXT}<|end|>\n<|start|>assistant\n"
    assert turns == tokenizer.encode(whole, add_special_tokens=False).ids
    assert [answer["num_tokens"] for answer in answers] == [len(text), len(turns)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"model": "m", "prompt": "a"}, (404, "no_token_ids", "'m' has none: no_tokenizer")),
        ({"model": "<b>", "prompt": "a"}, (404, "no_token_ids", "'<b>' has none: no_tokenizer")),
        ({"prompt": "a"}, (400, "malformed_body", "model")),
        ({"model": "m", "prompt": 3}, (400, "malformed_body", "prompt")),
    ],
)
def test_a_prompt_without_ids_says_why(
    body: dict[str, object], expected: tuple[int, str, str]
) -> None:
    service = Service(FakeIndex(), FakeFeed())
    with TestClient(Application(service, token_ids=token_ids_of(ListedTokens()))) as client:
        status, code, message = refusal(client.post("/v1/tokens", json=body))
    assert (status, code) == expected[:2]
    assert expected[2] in message


def test_a_server_without_tokenizers_says_so(client: TestClient) -> None:
    told = refusal(client.post("/v1/tokens", json={"model": "m", "prompt": "a"}))
    assert told == (404, "no_token_ids", "this server makes no token ids of prompts")
