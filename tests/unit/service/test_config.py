"""fleet.toml: read whole, or refused in one line with the key and a remedy."""

import json
from math import inf
from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.policy import CostOptions, RouterOptions, Seconds
from kvbraid.service.config import (
    FleetConfig,
    ServerOptions,
    Serving,
)
from kvbraid.service.fleet_file import override, read_fleet_file
from kvbraid.service.routing import POLICIES, Routing
from kvbraid.service.serve import index_options
from kvbraid.spec import SilentGroup, SpecKind, Topology

TOPOLOGY = "topology = {groups = [{kind = 'full_attention', block_size = %s}]}"
POD = '[[pods]]\nid = "a"\nmodel = "m"\nendpoint = "tcp://h:1"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[server]\nprot = 1", "unknown key server.prot; did you mean port?"),
        ("[sevrer]\n", "unknown key sevrer; did you mean server?"),
        (
            "xyz = 1",
            "known: server, tls, limits, index, router, gateway, envoy, console, shared, tokens,",
        ),
        (POD + "endpiont = 'x'", "unknown key pods[0].endpiont; did you mean endpoint?"),
        (POD + POD, "pods[1].id = 'a' is a duplicate; give each pod an id of its own"),
        ("[server]\nport = 'a'", "server.port: Expected `int`, got `str`"),
        ("[server]\nport = 65536", "server.port: Expected `int` <= 65535"),
        ("[server]\nready_after_s = -1", "server.ready_after_s: Expected `float` >= 0"),
        ("[server]\nready_after_s = nan", "server.ready_after_s: Expected `float` >= 0"),
        ("[limits]\ntokens = 0", "limits.tokens: Expected `int` >= 1"),
        ("[index]\nkeys = 'all'", "index.keys: Invalid enum value 'all'"),
        ("[[pods]]\nid = 'a'", "pods[0]: Object missing required field `model`"),
        (POD.replace("tcp", "udp"), "pods[0] (a): endpoint = 'udp://h:1'; give tcp://HOST:PORT"),
        (POD.replace('"a"', '"a@"'), "pods[0] (a@): pod id 'a@'; use 1 to 128"),
        (POD + "model_config = {}", "pods[0].model_config: Expected `str | null`, got `object`"),
        (POD + "num_gpu_blocks = 0", "pods[0].num_gpu_blocks: Expected `int` >= 1"),
        (POD + "num_gpu_blocks = '9'", "pods[0].num_gpu_blocks: Expected `int | null`, got `str`"),
        (POD + "drain = 1", "pods[0].drain: Expected `bool`, got `int`"),
        (POD + "max_running = 0", "pods[0].max_running: Expected `int` >= 1"),
        (POD + "url = 'tcp://h:1'", "pods[0] (a): url = 'tcp://h:1'; give http://HOST:PORT or"),
        ("[router]\nsecond = {}", "unknown key router.second; did you mean seconds?"),
        (
            "[router]\npolicy = 'best'",
            "router.policy is 'best'; expected one of cost, round_robin",
        ),
        ("[router]\npotential = 2", "router.potential is 2.0; expected a number from 0 to 1"),
        ("[router]\nslack = nan", "router.slack is nan; expected a number from 0 to 1e+12"),
        (
            "[router]\npolicy = 'dynamo'\nqueue = 0.2",
            "router.queue is 0.2, which policy dynamo does not look at; remove it, or use",
        ),
        ("[router]\nhold_s = 0", "router.hold_s: Expected `float` > 0"),
        ("[router]\ngrace_s = nan", "router.grace_s: Expected `float` >= 0"),
        ("[router]\nmost_bookings = 0", "router.most_bookings: Expected `int` >= 1"),
        ("[router]\nin_flight = 'no'", "router.in_flight: Expected `bool`, got `str`"),
        ("[router]\nseconds = 1", "router.seconds: Expected `object`, got `int`"),
        ("[router.seconds]\nm = 1", "router.seconds.m: Expected `object`, got `int`"),
        (
            "[router.seconds.m]\nper_token = 1e200",
            "router.seconds.m: per_token is 1e+200; expected seconds from 0 to 1e+12",
        ),
        (
            "[router.seconds.m]\nper_tokn = 1",
            "router.seconds.m: unknown key per_tokn; did you mean per_token?",
        ),
        (
            "[router.seconds.m]\nfixed = 'a'",
            "router.seconds.m: fixed: Expected `float`, got `str`",
        ),
        (
            "[router.seconds.m]\nfixed = -1",
            "router.seconds.m: fixed is -1.0; expected seconds from",
        ),
        (
            '[router.seconds."m\\n"]\nper_token = 0\nper_pair = 0',
            "router.seconds.m\\n: per_token and per_pair are both 0",
        ),
        (POD + "topology = {alignment = 0}", "pods[0] (a): topology.alignment = 0: expected"),
        ("x =", "not TOML"),
        ("a = " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        ("[limits]\nbody_bytes = 99999999999999999999999", "limits.body_bytes: Expected `int` <="),
        ("[index]\nmemory_limit_bytes = 36893488147419103232", "index.memory_limit_bytes: Expect"),
        ("[index]\nlimbo_limit_bytes = 36893488147419103232", "index.limbo_limit_bytes: Expected"),
        ("[index]\ncanonical_block_size = 4294967296", "index.canonical_block_size: Expected"),
        (
            "[index]\ntier_weights = {hbm = 1}",
            "unknown key index.tier_weights.hbm; remove it; known: gpu, cpu, storage",
        ),
        ("[index]\ntier_weights = {cpu = -1}", "index.tier_weights.cpu: Expected `float` >= 0.0"),
        ("[index]\ntier_weights = {cpu = inf}", "index.tier_weights.cpu: Expected `float` <= 100"),
        ("[index]\ntier_weights = {cpu = nan}", "index.tier_weights.cpu: Expected `float`"),
        ("[index]\ntier_weights = 1", "index.tier_weights: Expected `object`, got `int`"),
        (
            POD + TOPOLOGY % "65537}, {kind='full_attention', block_size=65539",
            "[65537, 65539] have",
        ),
        (
            POD + TOPOLOGY % "16}], hash_block_size = 7, model = [{",
            "(a): topology: group 0: block_siz",
        ),
        (POD.replace('"a"', '"a\\nb"'), "pods[0] (a\\nb): pod id 'a\\nb'; use 1 to 128"),
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


def test_weights_of_tiers_reach_the_index_and_the_others_keep_their_defaults(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("[index]\ntier_weights = { cpu = 0.25 }\n")
    assert index_options(read_fleet_file(path)).weights == [1.0, 0.25, 0.5]
    path.write_text("")
    assert index_options(read_fleet_file(path)).weights == [1.0, 0.8, 0.5]


def test_a_router_is_what_the_file_says_and_the_rest_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        "[router]\npotential = 0.25\nhold_s = inf\nmost_bookings = 9\nfirst_tokens = false\n"
        '[router.seconds."org/model"]\nfixed = 1\n'
    )
    routing = read_fleet_file(path).routing
    assert (routing.policy, routing.costs) == ("cost", CostOptions(potential=0.25))
    assert routing.options == RouterOptions(hold_s=inf, most_bookings=9, first_tokens=False)
    assert routing.seconds == {"org/model": Seconds(fixed=1.0)}
    path.write_text("")
    assert read_fleet_file(path).routing == Routing()


def test_coefficients_that_are_to_be_fitted_can_be_given_or_not(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        "[router.seconds.a]\nfit = true\n[router.seconds.b]\nfixed = 1\nfit = true\n"
        "[router.seconds.c]\nfixed = 1\nfit = false\n"
    )
    routing = read_fleet_file(path).routing
    assert routing.options.fit == {"a", "b"}
    assert routing.seconds == {"b": Seconds(fixed=1.0), "c": Seconds(fixed=1.0)}
    path.write_text("[router]\nfirst_tokens = false\n[router.seconds.a]\nfit = true\n")
    with pytest.raises(InvalidValueError, match=r"router\.seconds\.a\.fit needs first tokens"):
        read_fleet_file(path)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_named(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f"[router]\npolicy = '{policy}'\n")
    assert read_fleet_file(path).routing.make_policy().name == policy


@pytest.mark.parametrize(
    "url",
    [
        "http://h", "https://h:1", "http://10.0.0.1:65535", "http://[::1]:8000",
        "https://engines.example/pods/a-1/~x", "http://h:8000/", "http://my_pod.ns.svc:80",
    ],
)  # fmt: skip
def test_a_url_is_kept_as_it_is_given(tmp_path: Path, url: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f'{POD}url = "{url}"\ndrain = true\nmax_running = 8\n')
    (pod,) = read_fleet_file(path).pods.values()
    assert pod.serving == Serving(url=url, drain=True, max_running=8)


@pytest.mark.parametrize(
    "url",
    [
        "", "h:1", "ftp://h:1", "http://", "http://:80", "http://h:0", "http://h:65536",
        "http://h:99999", "http://h/?q", "http://h/#f", "http://h h", "http://-h", "http://h:1x",
        "http://h/" + "x" * 512, "http://*:80",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused(tmp_path: Path, url: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f'{POD}url = "{url}"\n')
    with pytest.raises(
        InvalidValueError, match=r"pods\[0\] \(a\): url = .*; give http://HOST:PORT"
    ):
        read_fleet_file(path)


def test_a_password_in_a_url_is_refused_and_not_told(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f'{POD}url = "http://me:hunter2@h:1"\n')
    with pytest.raises(InvalidValueError, match="url names a user, and everyone may read") as told:
        read_fleet_file(path)
    assert "hunter2" not in str(told.value)


LLAMA4 = {
    "model_type": "llama4_text", "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "attention_chunk_size": 256,
}  # fmt: skip
CHUNKED = '{ kind = "chunked_local_attention", block_size = 16%s }'


def with_model_config(folder: Path, text: str, pod: str = "") -> Path:
    (folder / "models").mkdir()
    (folder / "models" / "llama4.json").write_text(text)
    path = folder / "fleet.toml"
    path.write_text(f'{POD}model_config = "models/llama4.json"\n{pod}')
    return path


def test_a_models_config_lies_beside_the_file_and_says_what_is_learned_of_no_event(
    tmp_path: Path,
) -> None:
    path = with_model_config(tmp_path, json.dumps(LLAMA4))
    (pod,) = read_fleet_file(path).pods.values()
    assert pod.topology == Topology(groups=())
    assert pod.engine.unsent_tokens == ((SpecKind.CHUNKED_LOCAL_ATTENTION, 256),)


def test_the_size_of_a_pool_is_what_its_engine_does(tmp_path: Path) -> None:
    path = with_model_config(tmp_path, json.dumps(LLAMA4), "num_gpu_blocks = 27345\n")
    (pod,) = read_fleet_file(path).pods.values()
    assert pod.engine.num_gpu_blocks == 27345
    assert pod.engine.unsent_tokens


@pytest.mark.parametrize("chunk", ["", ", chunk = 256"])
def test_a_models_config_completes_the_groups_that_are_given(tmp_path: Path, chunk: str) -> None:
    topology = f"topology = {{ alignment = 64, groups = [{CHUNKED % chunk}] }}"
    path = with_model_config(tmp_path, json.dumps(LLAMA4), topology)
    (pod,) = read_fleet_file(path).pods.values()
    assert pod.topology is not None
    assert (pod.topology.alignment, pod.topology.groups[0].chunk) == (64, 256)


def test_a_models_config_as_llama_4_publishes_it_is_read(tmp_path: Path) -> None:
    published = {"model_type": "llama4", "text_config": {**LLAMA4, "no_rope_layers": []}}
    path = with_model_config(tmp_path, json.dumps(published))
    (pod,) = read_fleet_file(path).pods.values()
    assert pod.engine.unsent_tokens == ((SpecKind.CHUNKED_LOCAL_ATTENTION, 256),)


@pytest.mark.parametrize(
    ("text", "topology", "told"),
    [
        ("{", "", "llama4.json is not JSON: "),
        ("[]", "", "llama4.json holds a list; expected a model's config object"),
        ('{"model_type": "x"}', "", "model_type = 'x' is not known; docs/models.md lists the"),
        ('{"model_type": "llama"}', "", "the llama config has no `num_hidden_layers`"),
        (
            json.dumps(LLAMA4),
            f"topology = {{ groups = [{CHUNKED % ', chunk = 64'}] }}",
            "chunk 64 does not fit llama4_text, which has chunked_local_attention",
        ),
    ],
)
def test_a_bad_models_config_is_one_line_with_the_key(
    tmp_path: Path, text: str, topology: str, told: str
) -> None:
    path = with_model_config(tmp_path, text, topology)
    with pytest.raises(InvalidValueError) as refused:
        read_fleet_file(path)
    assert str(refused.value).startswith(f"{path}: pods[0] (a): model_config: ")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
SGLANG = 'topology = {{ dialect = "sglang", groups = [{0}] }}'
FULL = '{ kind = "full_attention", block_size = 16 }'
STATE = '{ kind = "mamba", block_size = 16 }'


def test_the_model_of_an_sglang_adds_the_groups_that_its_events_leave_out(tmp_path: Path) -> None:
    path = with_model_config(tmp_path, json.dumps(GPT_OSS), SGLANG.format(FULL))
    (pod,) = read_fleet_file(path).pods.values()
    assert pod.topology is not None
    assert [group.kind for group in pod.topology.groups] == [
        SpecKind.FULL_ATTENTION, SpecKind.SLIDING_WINDOW,
    ]  # fmt: skip
    path.write_text(path.read_text().replace(SGLANG.format(FULL), SGLANG.format("")))
    (pod,) = read_fleet_file(path).pods.values()
    assert pod.topology == Topology(groups=())
    assert pod.engine.silent_groups == (SilentGroup(kind=SpecKind.SLIDING_WINDOW, window=128),)


def test_a_group_that_an_sglang_does_not_keep_is_one_line_with_the_key(tmp_path: Path) -> None:
    path = with_model_config(tmp_path, json.dumps(GPT_OSS), SGLANG.format(f"{FULL}, {STATE}"))
    with pytest.raises(InvalidValueError) as refused:
        read_fleet_file(path)
    assert str(refused.value).startswith(f"{path}: pods[0] (a): model_config: a group mamba of ")
    assert "leave the group out" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_models_config_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    path = with_model_config(tmp_path, "")
    (tmp_path / "models" / "llama4.json").unlink()
    told = r"\(a\): model_config: .*No such file.*; give the path of a model's config.json"
    with pytest.raises(InvalidValueError, match=told):
        read_fleet_file(path)


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


def test_the_files_of_token_ids_are_beside_the_fleet_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[tokens."org/m"]\nfolder = "models/m"\ntemplate = "/t.jinja"\nfast = false')
    (table,) = read_fleet_file(path).tokens.values()
    assert (table.folder, table.template) == (str(tmp_path / "models" / "m"), "/t.jinja")
    assert (table.content_format, table.fast) == ("auto", False)
    path.write_text("[tokens.m]\nfolder = ''")
    with pytest.raises(InvalidValueError, match=r"tokens\S*folder: Expected `str` of length >= 1"):
        read_fleet_file(path)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("", "tokens.m: give a folder, or the URL of an engine"),
        ('folder = "m"\nengine = "http://h:1"', "tokens.m: give a folder, or the URL"),
        ('engine = "http://h:1"\nfast = false', "engine = 'http://h:1'; the engine that is asked"),
        ('engine = "http://h:1"\ntemplate = "t"', "give no other key"),
        ('engine = "h:8000"', "tokens.m.engine: url = 'h:8000'; give http://HOST:PORT"),
        ('engine = "http://me:secret@h"', "tokens.m.engine: url names a user"),
    ],
)
def test_token_ids_come_from_files_or_from_an_engine(
    tmp_path: Path, table: str, told: str
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f"[tokens.m]\n{table}\n")
    with pytest.raises(InvalidValueError) as refused:
        read_fleet_file(path)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)
    path.write_text('[tokens.m]\nengine = "http://h:1"\n')
    assert read_fleet_file(path).tokens["m"].engine == "http://h:1"
