"""The command line against a server of fakes and real feeds; exit statuses and one-line errors."""

import json
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from kvbraid.cli import cli
from kvbraid.errors import InvalidValueError, ServiceError
from kvbraid.events.model import AllBlocksCleared
from kvbraid.events.wire import encode_batch
from kvbraid.ids import PodId, PodState
from kvbraid.service.answers import PodRow, PodsAnswer
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.feeds.tail import source_of, sources_of, tail
from kvbraid.service.http.client import Client, read_request

from tests.service.serving import Server, running, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return f"http://{server.host}:{server.port}"


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    path = tmp_path / "tokens.json"
    path.write_text("[1, 2, 3]\n")
    return str(path)


def run(*arguments: str, stdin: bytes | None = None) -> str:
    result = CliRunner().invoke(cli, arguments, input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_score_prints_a_table_or_the_answer(url: str, tokens: str) -> None:
    assert "pod-0" in run("score", tokens, "--model", "m", "--url", url)
    answer = json.loads(run("score", tokens, "--model", "m", "--url", url, "--json"))
    assert answer["num_tokens"] == 3
    assert [row["pod"] for row in answer["pods"]] == ["pod-0"]


def test_tokens_come_from_stdin_as_json_or_raw(url: str) -> None:
    for data in (b"[5, 6]", array("I", [5, 6]).tobytes()):
        answer = run("score", "-", "--model", "m", "--url", url, "--json", stdin=data)
        assert json.loads(answer)["num_tokens"] == 2


def test_explain_draws_and_pods_lists(url: str, tokens: str) -> None:
    drawing = run("explain", tokens, "--model", "m", "--url", url)
    assert "> g0 sliding_window/32" in drawing
    assert "pod-0" in run("pods", "--url", url)
    assert json.loads(run("pods", "--url", url, "--json"))["pods"][0]["last_seq"] == 7


def running_requests(url: str) -> int:
    return int(json.loads(run("pods", "--url", url, "--json"))["pods"][0]["running"])


def test_pick_prints_a_table_of_terms_or_the_answer_and_books_nothing(
    url: str, tokens: str
) -> None:
    asked = ("pick", tokens, "--model", "m", "--url", url, "--session", "s", "--priority", "-1")
    table = run(*asked)
    assert table.startswith("m: 3 tokens to pod-0 rank 0\n")
    assert "prefill" in table
    answer = json.loads(run(*asked, "--pod", "pod-0", "--pod", "x", "--json"))
    assert (answer["pod"], answer["left_out"]) == ("pod-0", {"unknown": 1})
    assert [row["pod"] for row in answer["candidates"]] == ["pod-0"]
    assert running_requests(url) == 0


def test_a_pick_is_asked_about_as_the_api_takes_it(url: str, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    body = {
        "model": "m", "token_ids": [1, 2], "request_id": "r", "priority": 3, "explain": False,
        "candidates": ["x", {"pod": "pod-0", "dp_rank": 0}],
        "extra_keys": [{"identifier": "i", "offset": 1, "length": 1}],
    }  # fmt: skip
    path.write_text(json.dumps(body))
    answer = json.loads(run("pick", str(path), "--url", url, "--json"))
    assert (answer["pick"], answer["num_tokens"], answer["left_out"]) == ("r", 2, {"unknown": 1})
    assert answer["candidates"]


def test_a_pick_that_nobody_may_get_is_one_line_with_the_reason(url: str, tokens: str) -> None:
    line = failing("pick", tokens, "--model", "m", "--pod", "x", "--url", url)
    assert line.startswith("kvbraid: no_pod: none of the 1 candidates serves 'm'; ")


def test_the_ladder_is_a_table_or_the_answer_once_or_until_ctrl_c(
    url: str, tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.loads(run("pick", tokens, "--model", "m", "--url", url, "--json"))
    assert answer["pod"] == "pod-0"
    body = {"model": "m", "token_ids": [1, 2, 3], "request_id": "l"}
    httpx.post(f"{url}/v1/pick", json=body).raise_for_status()
    with Client(url) as client:
        told = client.picked("l", "end")
    assert told.ladder is not None
    assert told.ladder.rungs.prompt == 3
    assert run("ladder", "--url", url).startswith("m: 1 request, 0 reported\nrung ")
    (model,) = json.loads(run("ladder", "--url", url, "--json"))["models"]
    assert (model["rungs"]["prompt"], model["ended"]) == (3, 1)

    waits = iter((None, KeyboardInterrupt()))

    def sleep(_: float) -> None:
        if (error := next(waits)) is not None:
            raise error

    monkeypatch.setattr("kvbraid.cli.time.sleep", sleep)
    lines = run("ladder", "--url", url, "--json", "--watch").splitlines()
    assert [json.loads(line)["models"] for line in lines] == [[model]] * 2
    waits = iter((KeyboardInterrupt(),))
    assert "m: 1 request, 0 reported\n" in run("ladder", "--url", url, "--watch")


def test_a_pick_shows_the_token_of_the_server(tokens: str) -> None:
    with serving("--token", "sécret") as (_, url):
        asked = ("pick", tokens, "--model", "m", "--url", url)
        assert failing(*asked).startswith("kvbraid: unauthorized: ")
        assert failing(*asked, "--token", "sécret").startswith("kvbraid: unknown_model: ")
        assert failing(*asked, KVBRAID_TOKEN="sécret").startswith("kvbraid: unknown_model: ")
        for wrong in ("", "a\nb"):
            line = failing(*asked, "--token", wrong)
            assert line.startswith("kvbraid: the token is empty, or no header can carry it; ")


def failing(
    *arguments: str | bytes,
    output: int = subprocess.PIPE,
    stdin: str | None = None,
    **variables: str,
) -> str:
    """Run the real command, and return its one line on stderr; the exit status is 2."""
    main = "import sys; from kvbraid.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, *arguments]
    done = subprocess.run(
        command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
        env={**os.environ, **variables}, input=stdin,
    )  # fmt: skip
    assert (done.returncode, done.stdout or "") == (2, "")
    (line,) = done.stderr.splitlines()
    return line


NOT_UTF8 = b"\xff"


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "-", "--model", NOT_UTF8],
        ["score", "-", "--model", "m", "--cache-salt", NOT_UTF8],
        ["explain", "-", "--model", "m", "--lora", NOT_UTF8],
        ["score", "-", "--model", "m", "--pod", NOT_UTF8],
        ["pods", "--url", b"http://" + NOT_UTF8],
        ["pick", "-", "--session", NOT_UTF8],
        ["pick", "-", "--token", NOT_UTF8],
        ["serve", "--token", NOT_UTF8],
        ["serve", "--host", NOT_UTF8],
        ["serve", "--allow-host", NOT_UTF8],
        ["tail", "--endpoint", b"tcp://" + NOT_UTF8],
        ["tail", NOT_UTF8],
    ],
)
def test_bytes_that_are_no_text_are_refused_in_one_line(arguments: list[str | bytes]) -> None:
    assert failing(*arguments).endswith("has bytes that are not UTF-8; give text")


def test_an_empty_token_is_refused_wherever_it_is_given() -> None:
    given = failing("serve", "--port", "0", "--token", "")
    assert given == failing("serve", "--port", "0", KVBRAID_TOKEN="")
    assert given.startswith("kvbraid: --token: ")


def test_output_that_cannot_be_written_is_one_line(url: str) -> None:
    with Path("/dev/full").open("w") as full:
        for arguments in (["pods", "--url", url], ["pods", "--json", "--url", url], ["--help"]):
            line = failing(*arguments, output=full.fileno())
            assert line.startswith("kvbraid: the output cannot be written: No space left")


@pytest.mark.parametrize("size", ["99999999999GiB", "9" * 400 + "GiB", "9" * 5000, "1B"])
def test_memory_that_no_cache_can_have_is_refused_in_one_line(tmp_path: Path, size: str) -> None:
    trace, model = tmp_path / "trace.jsonl", tmp_path / "config.json"
    trace.write_text('{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[0]}\n')
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    model.write_text(json.dumps(config))
    line = failing("cache", "simulate", str(trace), "--model", str(model), "--memory", size)
    assert "memory" in line
    assert len(line) < 300


def test_a_refusal_is_one_line_with_its_remedy_and_exit_2(url: str, tokens: str) -> None:
    line = failing("score", tokens, "--model", "x", "--url", url)
    assert line.startswith("kvbraid: unknown_model: ")
    assert "GET /v1/models" in line


def test_an_unreachable_server_is_one_line_and_exit_2(tokens: str) -> None:
    line = failing("score", tokens, "--model", "m", "--url", "http://127.0.0.1:1")
    assert "start `kvbraid serve`" in line


def test_a_bad_fleet_file_is_one_line_with_key_and_remedy_and_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[pods]]\nid = "a"\nmodel = "m"\nendpiont = "tcp://h:1"\n')
    line = failing("serve", "--config", str(path))
    assert line == f"kvbraid: {path}: unknown key pods[0].endpiont; did you mean endpoint?"


@pytest.mark.parametrize(
    "text", [b"", b"abc", b"[1.5]", b"[-1]", b"[18446744073709551616]", b'["a"]']
)
def test_tokens_that_are_none_are_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(text)
    with pytest.raises(InvalidValueError, match="tokens: "):
        read_request(str(path), {"model": "m"})


TEXT = "text, not token ids, which the engine computes: POST /tokenize returns those of a text"


@pytest.mark.parametrize("command", ["score", "explain"])
def test_text_is_refused_in_one_line_that_says_where_token_ids_come_from(command: str) -> None:
    line = failing(command, "--model", "m", "-", stdin="hello wo")
    assert line.startswith(f"kvbraid: -: {TEXT}, and docs/tokens.md says more; --raw takes ")


@pytest.mark.parametrize(
    "text",
    ["abc", "Hello, wor", "1 2 3 4\n", "\ttab\r\n", '"quoted"', "Grüße, Ωmega", "wie gehts\x7f"],
)
def test_no_text_is_taken_for_token_ids(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompt.txt"
    for data in (text.encode(), text.encode("latin-1", errors="replace")):
        path.write_bytes(data)
        with pytest.raises(InvalidValueError, match=TEXT):
            read_request(str(path), {"model": "m"})


def test_text_is_raw_token_ids_for_those_who_say_so(url: str) -> None:
    for command in ("score", "explain"):
        asked = (command, "-", "--raw", "--model", "m", "--url", url, "--json")
        assert json.loads(run(*asked, stdin=b"[1, 2]  "))["num_tokens"] == 2


@pytest.mark.parametrize("first", [ord("{"), ord("["), ord(" ") | ord("{") << 8])
def test_raw_token_ids_that_begin_as_json_does_are_raw(tmp_path: Path, first: int) -> None:
    path = tmp_path / "tokens"
    data = array("I", [first, 2, ord("]") << 24]).tobytes()
    path.write_bytes(data)
    assert read_request(str(path), {"model": "m"})[0].data == data


def test_tokens_of_64_bits_are_read_as_such(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(b"[1, 4294967295]")
    tokens, _ = read_request(str(path), {"model": "m"})
    assert tokens == (array("I", [1, 2**32 - 1]).tobytes(), 4)
    path.write_bytes(b"[1, 4294967296]")
    tokens, _ = read_request(str(path), {"model": "m"})
    assert tokens == (array("Q", [1, 2**32]).tobytes(), 8)


BODY = {
    "model": "m", "token_ids": [1, 2, 3], "cache_salt": "s", "lora": None, "pods": ["pod-0"],
    "tiers": ["gpu"], "extra_keys": [{"identifier": "i", "offset": 1, "length": 1}],
    "tier_weights": {"gpu": 2.0},
}  # fmt: skip


def test_a_whole_request_is_asked_as_the_api_takes_it(url: str, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(BODY))
    answer = json.loads(run("score", str(path), "--url", url, "--json"))
    assert answer == httpx.post(f"{url}/v1/score", json=BODY).json()
    assert (answer["num_tokens"], list(answer["pods"][0]["tiers"])) == (3, ["gpu"])
    assert "pod-0" in run("explain", str(path), "--url", url)


def test_options_replace_the_fields_of_a_whole_request(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(BODY))
    tokens, query = read_request(str(path), {"model": "other", "pods": (), "lora": "l"})
    assert tokens.data == array("I", [1, 2, 3]).tobytes()
    assert (query["model"], query["pods"], query["lora"]) == ("other", ["pod-0"], "l")
    assert query["cache_salt"] == "s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"has no model; give --model, or the body of a request with its `model`"),
        ('{"token_ids": [1]}', r"not the body of a request \(.*`model`"),
        ('{"model": "m", "tokens": [1]}', r"body of a request \(unknown key tokens; did you mean"),
        ('{"model": "m", "prompt": "Hi"}', r"unknown key prompt; .* POST /tokenize .*tokens\.md"),
        ("[1, 2", r"not a JSON list of token ids"),
        ("[" * 100_000, r"not a JSON list of token ids"),
        ('{"model": ' * 100_000, r"not the body of a request"),
        ('{"model": "m", "token_ids": [1', r"not the body of a request"),
        ('{"model": "m", "token_ids": [18446744073709551616]}', r"not a"),
    ],
)
def test_what_is_no_request_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "request.json"
    path.write_text(text)
    with pytest.raises(InvalidValueError, match=message):
        read_request(str(path), {})


def test_a_server_that_is_not_kvbraid_is_said_so(url: str) -> None:
    with Client(f"{url}/elsewhere") as client, pytest.raises(ServiceError, match="not_found"):
        client.pods()


def test_tail_shows_what_an_endpoint_publishes() -> None:
    payload = encode_batch([AllBlocksCleared()], ts=1.0, dp_rank=0)
    stop = threading.Event()
    with Publisher("tcp://127.0.0.1:*", topic="kv@a@m", bind=True) as publisher:

        def publish() -> None:
            while not stop.wait(0.02):  # A new subscriber misses what came before it.
                publisher.publish(payload)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            published = next(tail([source_of(publisher.endpoint)]))
            shown = run("tail", "--endpoint", publisher.endpoint, "--count", "2")
        finally:
            stop.set()
            thread.join()
    assert published.batch.events == (AllBlocksCleared(),)
    assert published.seq >= 0
    assert shown.count("cleared all blocks") == 2


def row(
    pod: str, rank: int, *, bind: bool | None = None, endpoint: str | None = "tcp://h:5"
) -> PodRow:
    return PodRow(
        pod=PodId(pod), dp_rank=rank, model="m", state=PodState.EXACT, reason="", messages=0,
        groups=[], placed={}, refused={}, hash_function="", num_blocks=0, memory_bytes=0,
        last_seq=None, endpoint=endpoint, replay_endpoint=None, bind=bind,
    )  # fmt: skip


def test_tail_follows_the_pods_of_a_server_rank_by_rank_except_those_it_binds() -> None:
    pods = PodsAnswer(pods=[row("a", 0), row("a", 1), row("b", 0, bind=True)])
    assert [(s.name, s.endpoint) for s in sources_of(pods)] == [
        ("a/0", "tcp://h:5"),
        ("a/1", "tcp://h:6"),
    ]
    silent = PodsAnswer(pods=[*pods.pods, row("d", 0, endpoint=None)])
    assert len(sources_of(silent)) == 2
    with pytest.raises(InvalidValueError, match="they have no events, or the server binds"):
        sources_of(silent, ["d"])
    with pytest.raises(InvalidValueError, match="unknown pods c"):
        sources_of(pods, ["c"])
    with pytest.raises(InvalidValueError, match="--endpoint"):
        sources_of(pods, ["b"])
