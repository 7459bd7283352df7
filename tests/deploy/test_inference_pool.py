"""deploy/inference-pool: the base with a picker of a pool, whose manifests agree with each other.

`kubernetes-validate` knows the kinds of Kubernetes itself. Of the others our own reader of pools,
and names that have to agree, are all that can be checked without a cluster.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from kvbraid.service.envoy import EnvoyOptions
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.service.kubernetes.inference_pool import read_pool

from tests.deploy.commands import started
from tests.deploy.manifests import VERSIONS, built, needs_kubectl, needs_validate, validate
from tests.service.kubernetes.kube_api import encoded
from tests.service.serving import MAIN, ROOT

FOLDER: Final = ROOT / "deploy" / "inference-pool"
OF_OTHERS: Final = ("Gateway", "HTTPRoute", "InferencePool")
"""Kinds that a cluster has only if somebody installs them."""

(WATCHED,) = read_fleet_file(FOLDER / "fleet.toml").watched
pytestmark = needs_kubectl


@cache
def objects() -> dict[str, dict[str, Any]]:
    return built(FOLDER)


def container() -> dict[str, Any]:
    (only,) = objects()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


@needs_validate
@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_is_valid(tmp_path: Path, version: str) -> None:
    ours = [each for kind, each in objects().items() if kind not in OF_OTHERS]
    assert len(ours) == len(objects()) - len(OF_OTHERS)
    (tmp_path / "built.yaml").write_text(yaml.safe_dump_all(ours))
    assert validate(tmp_path / "built.yaml", version=version) == ""


def test_the_route_leads_to_the_pool_and_the_pool_to_the_picker() -> None:
    pool, route, service = (objects()[kind] for kind in ("InferencePool", "HTTPRoute", "Service"))
    (rule,) = route["spec"]["rules"]
    group, _, version = pool["apiVersion"].partition("/")
    name = pool["metadata"]["name"]
    assert version == "v1"
    assert rule["backendRefs"] == [{"group": group, "kind": "InferencePool", "name": name}]
    gateway = objects()["Gateway"]["metadata"]["name"]
    assert route["spec"]["parentRefs"] == [{"name": gateway}]
    picker = pool["spec"]["endpointPickerRef"]
    assert (picker["kind"], picker["name"]) == ("Service", service["metadata"]["name"])
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    assert ports.keys() == {"http", "grpc"}
    assert picker["port"] == {"number": ports["grpc"]["port"]}
    named = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert named["grpc"] == picker["port"]["number"] == EnvoyOptions().port
    (ingress,) = objects()["NetworkPolicy"]["spec"]["ingress"]
    assert [each["port"] for each in ingress["ports"]] == ["http", "grpc"]


def test_the_configuration_follows_the_pool_at_its_own_ports() -> None:
    pool = objects()["InferencePool"]
    assert pool["metadata"]["name"] == WATCHED.entry.pool
    ports = {*read_pool(encoded(pool)).target_ports, WATCHED.entry.events_port}
    engines, *_ = objects()["NetworkPolicy"]["spec"]["egress"]
    assert {each["port"] for each in engines["ports"]} == ports | {WATCHED.entry.replay_port}
    config = objects()["ConfigMap"]
    assert config["metadata"]["name"] == "kvbraid"
    assert config["data"] == {"fleet.toml": (FOLDER / "fleet.toml").read_text()}


def test_only_the_pool_and_the_pods_can_be_read() -> None:
    rules = [
        (each["apiGroups"], each["resources"], each.get("resourceNames"), each["verbs"])
        for each in objects()["Role"]["rules"]
    ]
    assert rules == [
        (["inference.networking.k8s.io"], ["inferencepools"], [WATCHED.entry.pool], ["get"]),
        ([""], ["pods"], None, ["list", "watch"]),
    ]


def test_there_are_two_pickers_and_a_drain_takes_one_at_most() -> None:
    assert objects()["Deployment"]["spec"]["replicas"] == 2
    assert objects()["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_the_picker_starts_with_its_configuration_and_its_probes_are_answered() -> None:
    mounted = "/etc/kvbraid/fleet.toml"
    arguments = [
        str(FOLDER / "fleet.toml") if each == mounted else each for each in container()["args"]
    ]
    assert arguments[0] == "pick-serve"
    ports = ["--port", "0", "--grpc-port", "0"]
    with started([sys.executable, "-c", MAIN, *arguments, *ports]) as (_, url):
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            path = container()[probe]["httpGet"]["path"]
            answer = httpx.get(f"{url.replace('0.0.0.0', '127.0.0.1')}{path}")
            assert answer.status_code == 200, (probe, answer.text)
