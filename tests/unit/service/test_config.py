"""fleet.toml: read whole, or refused in one line with the key and a remedy."""

from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.service.config import FleetConfig, ServerOptions, override, read_fleet_file

POD = '[[pods]]\nid = "a"\nmodel = "m"\nendpoint = "tcp://h:1"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[server]\nprot = 1", "unknown key server.prot; did you mean port?"),
        ("[sevrer]\n", "unknown key sevrer; did you mean server?"),
        ("xyz = 1", "unknown key xyz; remove it; known: server, limits, index, pods"),
        (POD + "endpiont = 'x'", "unknown key pods[0].endpiont; did you mean endpoint?"),
        (POD + POD, "pods[1].id = 'a' is a duplicate; give each pod an id of its own"),
        ("[server]\nport = 'a'", "server.port: Expected `int`, got `str`"),
        ("[server]\nport = 65536", "server.port: Expected `int` <= 65535"),
        ("[limits]\ntokens = 0", "limits.tokens: Expected `int` >= 1"),
        ("[index]\nkeys = 'all'", "index.keys: Invalid enum value 'all'"),
        ("[[pods]]\nid = 'a'", "pods[0]: Object missing required field `model`"),
        (POD.replace("tcp", "udp"), "pods[0] (a): endpoint = 'udp://h:1'; give tcp://HOST:PORT"),
        (POD.replace('"a"', '"a@"'), "pods[0] (a@): pod id 'a@'; use 1 to 128"),
        (POD + "topology = {alignment = 0}", "pods[0] (a): topology.alignment = 0; expected"),
        ("x =", "not TOML"),
        ("\udcff", "not TOML"),
    ],
)
def test_a_bad_file_is_one_line_with_the_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidValueError) as refused:
        read_fleet_file(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="No such file"):
        read_fleet_file(tmp_path / "none.toml")


def test_other_transports_are_allowed_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(POD.replace("tcp://h:1", "ipc:///run/kv"))
    assert [pod.endpoint for pod in read_fleet_file(path).pods.values()] == ["ipc:///run/kv"]


def test_flags_replace_what_the_file_says_where_they_are_given() -> None:
    config = FleetConfig(server=ServerOptions(port=1, host="h"))
    flags = {"port": 2, "host": None, "token": "t", "allow_registration": None}
    assert override(config, flags).server == ServerOptions(port=2, host="h", token="t")
    with pytest.raises(InvalidValueError, match="--token"):
        override(config, {"token": ""})
