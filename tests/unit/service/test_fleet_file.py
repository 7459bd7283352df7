"""Every error of a fleet.toml, and the schema that says the same of its keys and types."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.cli import cli
from kvbraid.errors import InvalidValueError
from kvbraid.service.config import FleetFile
from kvbraid.service.decoding import every_fault
from kvbraid.service.fleet_file import examine, read_fleet_file

POD = '[[pods]]\nid = "%s"\nmodel = "m"\nendpoint = "tcp://h:1"\n'
WRONG = f"""
colour = 1
[server]
port = "a"
prot = 1
[limits]
tokens = 0
pods = 0
[index.tier_weights]
gpu = -1
hbm = 1
[router]
policy = "best"
[router.seconds.m]
fixed = -1
[tokens."org/m-1.5"]
foldr = "x"
[tokens.other]
fast = true
{POD % "a"}
dp_size = 0
drain = 1
{POD % "b"}
url = "ftp://h"
[[pods]]
topology = {{ alignment = 0 }}
{POD % "b"}
{POD % "c"}
topology = {{ alignment = 0 }}
{POD % "d"}
[[discover]]
name = "n"
port = 1
model = "m"
url = "http://h"
[[discover]]
port = 0
"""
TOLD = """
unknown key colour; remove it; known: server, tls, limits, index, router, gateway, envoy, console,
server.port: Expected `int`, got `str`
unknown key server.prot; did you mean port?
limits.tokens: Expected `int` >= 1
limits.pods: Expected `int` >= 1
index.tier_weights.gpu: Expected `float` >= 0.0
unknown key index.tier_weights.hbm; remove it; known: gpu, cpu, storage
unknown key tokens.org/m-1.5.foldr; did you mean folder?
pods[0].dp_size: Expected `int` >= 1
pods[0].drain: Expected `bool`, got `int`
pods[2]: Object missing required field `model`
pods[2]: Object missing required field `id`
discover[1].port: Expected `int` >= 1
discover[1]: Object missing required field `model`
discover[1]: Object missing required field `name`
router.policy is 'best'; expected one of cost,
tokens.other: give a folder, or the URL of an engine
pods[1] (b): url = 'ftp://h'; give http://HOST:PORT or https://HOST:PORT
pods[4] (c): topology.alignment = 0: expected
discover[0] (n): url = 'http://h'; give port, events_port and replay_port
""".strip().splitlines()


def check(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["check-config", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.toml"


def test_every_error_is_a_line_and_the_first_one_is_what_a_server_says(path: Path) -> None:
    path.write_text(WRONG)
    config, faults = examine(path)
    assert config is None
    assert [line[: len(told)] for line, told in zip(faults, TOLD, strict=True)] == TOLD
    with pytest.raises(InvalidValueError) as refused:
        read_fleet_file(path)
    more = f" ({len(TOLD) - 1} more: kvbraid check-config lists them)"
    assert str(refused.value) == f"{path}: {faults[0]}{more}"


GOOD: Final[dict[str, dict[str, object]]] = {
    "server": {"port": 1, "host": "h", "allow_hosts": ["a"], "silence_s": 1.5},
    "limits": {"tokens": 5, "pods": 6},
    "index": {"keys": "join", "tier_weights": {"gpu": 1.0}},
    "gateway": {"paths": ["/a"], "tells": False},
}
BAD: Final[tuple[object, ...]] = (None, -1, [], {"x": 1}, [[{}]], float("nan"))


@given(st.data())
def test_each_wrong_value_is_told_once_and_a_right_one_never(data: st.DataObject) -> None:
    document, wrong = deepcopy(GOOD), set[str]()
    for table, keys in document.items():
        for key, value in keys.items():
            bad = data.draw(st.sampled_from([value, *BAD]), label=f"{table}.{key}")
            kind = {table: {key: bad}}
            try:
                msgspec.convert(kind, FleetFile)
            except msgspec.ValidationError:
                wrong.add(f"{table}.{key}")
            keys[key] = bad
    told = [
        re.match(r"(?:unknown key )?(\w+\.\w+)", line) for line in every_fault(document, FleetFile)
    ]
    assert {match[1] for match in told if match} == wrong
    assert len(told) == len(wrong)
    assert not wrong or not list(every_fault(GOOD, FleetFile))


def test_a_pod_is_no_duplicate_of_one_that_is_wrong(path: Path) -> None:
    path.write_text(POD % "a" + POD % "a")
    assert examine(path)[1] == [
        "pods[1].id = 'a' is a duplicate; give each pod an id of its own",
    ]


def test_a_file_is_checked_with_a_status(path: Path) -> None:
    path.write_text(WRONG)
    status, output = check(str(path))
    assert status == 1
    assert [line.startswith(f"{path}: ") for line in output.splitlines()] == [True] * len(TOLD)
    status, output = check(str(path), "--json")
    assert status == 1
    assert json.loads(output) == {"file": str(path), "errors": examine(path)[1]}
    path.write_text(POD % "a")
    assert check(str(path)) == (0, f"{path}: nothing is wrong; 1 pod\n")
    assert check(str(path), "--json") == (0, f'{{"file": "{path}", "errors": []}}\n')
    path.write_text("[[pods")
    assert check(str(path))[0] == 1


@pytest.mark.parametrize("arguments", [(), ("fleet.toml", "--schema")])
def test_a_file_or_the_schema_is_asked_for(arguments: tuple[str, ...]) -> None:
    status, output = check(*arguments)
    assert status == 2
    assert "Give a FILE, or --schema alone." in output


def test_a_file_that_cannot_be_read_is_no_error_of_the_file(path: Path) -> None:
    result = CliRunner().invoke(cli, ["check-config", str(path)])
    assert isinstance(result.exception, InvalidValueError)


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(check("--schema")[1])["$defs"]
    return tables


def test_the_schema_refuses_keys_that_nobody_reads(tables: dict[str, Any]) -> None:
    structs = {name: table for name, table in tables.items() if table.get("type") == "object"}
    assert [name for name, table in structs.items() if table["additionalProperties"]] == []
    assert len(structs) > 10
