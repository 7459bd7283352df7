"""docs/configuration.md and the other files of the documentation against the schema."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from kvbraid.service.fleet_file import examine, schema

from tests.docs.markdown import DOCS, ROOT, UNSET, blocks, codes, tables
from tests.service.serving import ONE_POD, POD

PAGE: Final = DOCS / "configuration.md"
SCHEMA: Final[dict[str, Any]] = json.loads(schema())
FOUND: Final = ("[[discover]]", "[[kubernetes]]")
UNREAD: Final = {"sliding_window"} | {
    name
    for table in ("GroupMapping", "PodMapping")
    for name, kind in SCHEMA["$defs"][table]["properties"].items()
    if not {"anyOf", "type", "enum", "$ref"} & kind.keys()
}
"""Settings of an engine's exported config.json, which may stand in a topology."""


def faults(document: object) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]


def examples() -> Iterator[Any]:
    """The fleet files of the documentation and of its examples, and the page's with all keys."""
    for page in sorted(DOCS.rglob("*.md")):
        for block in blocks(page):
            if block.language == "toml" or block.text.startswith(FOUND):
                yield pytest.param(block.text, id=page.name)
                yield pytest.param(UNSET.sub("", block.text), id=f"{page.name}-whole")
    for path in sorted((ROOT / "deploy").rglob("*.toml")):
        yield pytest.param(path.read_text(), id=path.name)
    yield pytest.param(ONE_POD.format(folder="f", url="http://h:1"), id="tests")


@pytest.mark.parametrize("text", [*examples()])
def test_the_schema_takes_the_files_of_the_documentation(text: str) -> None:
    assert faults(tomllib.loads(text)) == []


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "sever = {}",
        "[server]\nport = 65536",
        "[limits]\ntokens = 0",
        "[router.seconds.m]\nfix = 1",
        "[[pods]]\nid = 'a'",
        POD.format(name="a", folder="f", url="u") + "[pods.loras]\na = 1",
        POD.replace("full_attention", "half").format(name="a", folder="f", url="http://h"),
        "[[discover]]\nname = '-'\nport = 1\nmodel = 'm'",
        "[[kubernetes]]\nservice = 'a_b'\nport = 1\nmodel = 'm'",
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(text: str, tmp_path: Any) -> None:  # noqa: ANN401
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    assert examine(path)[1]
    assert faults(tomllib.loads(text))


def keys_of(name: str) -> set[str]:
    return set(SCHEMA["$defs"][name]["properties"])


def documented() -> Iterator[tuple[str, set[str]]]:
    """The keys of each table as the page shows them, by the name of the table's struct."""
    example, discover, watched = (
        tomllib.loads(UNSET.sub("", block.text))
        for block in blocks(PAGE)
        if block.language == "toml" or block.text.startswith(FOUND)
    )
    yield "FleetFile", {*example, *discover, *watched}
    kinds = {
        "server": "ServerOptions",
        "tls": "TlsTable",
        "limits": "Limits",
        "index": "IndexTable",
        "router": "RouterTable",
        "gateway": "ForwardingOptions",
        "envoy": "EnvoyOptions",
        "shared": "SharedTable",
    }
    for table, kind in kinds.items():
        yield kind, {*example[table]}
    yield "SecondsTable", {*example["router"]["seconds"]["gpt-oss"]}
    yield "TierWeights", {*example["index"]["tier_weights"]}
    yield "TokensTable", {*example["tokens"]["gpt-oss"], *example["tokens"]["qwen3"]}
    yield "KeyEntry", {*example["keys"][0]}
    of_pod, of_group = tables(PAGE.name, "Topology: what the wire does not carry")
    for kind, rows in (("PodMapping", of_pod), ("GroupMapping", of_group)):
        yield kind, {code for row in rows for code in codes(row[0])}


@pytest.mark.parametrize(("kind", "keys"), [*documented()])
def test_the_keys_of_the_page_are_those_of_the_schema(kind: str, keys: set[str]) -> None:
    in_prose = {"sparse_windows", "bind", "shard"}  # No file needs them.
    assert keys - UNREAD | in_prose == keys_of(kind) - UNREAD | in_prose


def test_the_keys_of_pods_are_in_the_page() -> None:
    (pod,) = tomllib.loads(
        UNSET.sub("", next(b.text for b in blocks(PAGE) if b.language == "toml"))
    )["pods"]
    assert {*pod, "bind"} == keys_of("PodEntry")
    own = {"name", "port", "events_port", "replay_port", "every_s", "misses"}
    assert keys_of("DiscoverEntry") == own | keys_of("PodEntry") - {"id"}
    ports = own - {"name", "every_s", "misses"}
    sources = {"service", "selector", "pods", "pool"}
    of_kubernetes = ports | sources | {"namespace", "hold_s", "api", "folder"}
    assert keys_of("KubernetesEntry") == of_kubernetes | keys_of("PodEntry") - {"id"}
    (shown,) = (b.text for b in blocks(PAGE) if b.text.startswith("[[kubernetes]]"))
    (table,) = tomllib.loads(UNSET.sub("", shown))["kubernetes"]
    assert {*table} == of_kubernetes | {"model"}
    page = PAGE.read_text()
    assert [key for key in own | {"bind", "sparse_windows"} if f"{key}" not in page] == []
