"""deploy/kubernetes: manifests that are valid, agree with each other, and start what answers."""

import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from kvbraid.service.config import ServerOptions
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.service.forwarding import ForwardingOptions

from tests.deploy.commands import started
from tests.deploy.manifests import (
    VERSIONS,
    built,
    needs_kubectl,
    needs_validate,
    validate,
)
from tests.service.serving import MAIN, ROOT

FOLDER: Final = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
FILES: Final[list[str]] = KUSTOMIZATION["resources"]
OBJECTS: Final[dict[str, dict[str, Any]]] = {
    each["kind"]: each
    for name in FILES
    for each in yaml.safe_load_all((FOLDER / name).read_text())
}
POD: Final[dict[str, Any]] = OBJECTS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
MOUNTED: Final = "/etc/kvbraid/fleet.toml"
UNITS: Final = {"Gi": 1 << 30, "Mi": 1 << 20}


@needs_validate
@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_is_valid(version: str) -> None:
    assert validate(*(FOLDER / name for name in FILES), version=version) == ""


@needs_validate
def test_a_field_that_does_not_exist_is_found(tmp_path: Path) -> None:
    wrong = (FOLDER / "disruption.yaml").read_text().replace("maxUnavailable", "maxMissing")
    (tmp_path / "wrong.yaml").write_text(wrong)
    assert "maxMissing" in validate(tmp_path / "wrong.yaml", version=VERSIONS[-1])


@needs_kubectl
def test_the_base_is_built_with_the_configuration_under_the_name_that_is_mounted() -> None:
    objects = built(FOLDER)
    assert objects.keys() == {*OBJECTS, "ConfigMap"}
    namespace = KUSTOMIZATION["namespace"]
    assert {each["metadata"]["namespace"] for each in objects.values()} == {namespace}
    (subject,) = objects["RoleBinding"]["subjects"]
    assert subject["namespace"] == namespace
    volume, *_ = objects["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert objects["ConfigMap"]["data"] == {"fleet.toml": (FOLDER / "fleet.toml").read_text()}


def test_each_object_means_the_pods_of_the_deployment() -> None:
    labels = POD["metadata"]["labels"]
    (spread,) = POD["spec"]["topologySpreadConstraints"]
    assert OBJECTS["Deployment"]["spec"]["replicas"] == 2
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    for selector in (
        OBJECTS["Deployment"]["spec"]["selector"],
        OBJECTS["PodDisruptionBudget"]["spec"]["selector"],
        OBJECTS["NetworkPolicy"]["spec"]["podSelector"],
        spread["labelSelector"],
    ):
        assert selector == {"matchLabels": labels}


def test_ports_have_the_name_and_number_of_the_server() -> None:
    (port,) = CONTAINER["ports"]
    assert port == {"name": "http", "containerPort": ServerOptions().port}
    assert POD["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    (service,) = OBJECTS["Service"]["spec"]["ports"]
    assert (service["port"], service["targetPort"]) == (port["containerPort"], "http")
    (ingress,) = OBJECTS["NetworkPolicy"]["spec"]["ingress"]
    assert [each["port"] for each in ingress["ports"]] == ["http"]


def test_the_api_server_can_be_reached() -> None:
    _, server, *_ = OBJECTS["NetworkPolicy"]["spec"]["egress"]
    assert [each["port"] for each in server["ports"]] == [443, 6443]
    assert "to" not in server


def test_the_ports_of_engines_are_open() -> None:
    engines, *_ = OBJECTS["NetworkPolicy"]["spec"]["egress"]
    (found,) = read_fleet_file(FOLDER / "fleet.toml").watched
    ports = {found.entry.port, found.entry.events_port, found.entry.replay_port}
    assert {each["port"] for each in engines["ports"]} == ports


def test_only_the_endpoints_of_one_namespace_can_be_read() -> None:
    binding = OBJECTS["RoleBinding"]
    account = OBJECTS["ServiceAccount"]["metadata"]["name"]
    assert "ClusterRole" not in OBJECTS
    assert [(each["resources"], each["verbs"]) for each in OBJECTS["Role"]["rules"]] == [
        (["endpointslices"], ["list", "watch"]),
    ]
    assert OBJECTS["Role"]["rules"][0]["apiGroups"] == ["discovery.k8s.io"]
    assert POD["spec"]["automountServiceAccountToken"] is True
    assert binding["roleRef"]["name"] == OBJECTS["Role"]["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert POD["spec"]["serviceAccountName"] == account


def test_a_pod_may_do_nothing_but_read_its_configuration_and_write_its_snapshots() -> None:
    assert POD["spec"]["securityContext"]["runAsNonRoot"] is True
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    assert [volume["name"] for volume in POD["spec"]["volumes"]] == list(mounts)
    assert f"{mounts['config']['mountPath']}/fleet.toml" == MOUNTED
    assert all("subPath" not in mount for mount in mounts.values())
    (writable,) = (mount for mount in mounts.values() if not mount.get("readOnly"))
    assert writable["mountPath"] == read_fleet_file(FOLDER / "fleet.toml").index.snapshots


def test_a_replica_that_asks_its_neighbour_reaches_it_and_has_its_secret(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    text = (FOLDER / "fleet.toml").read_text()
    config.write_text(text.replace("# secret", "secret").replace("# neighbour", "neighbour"))
    index = read_fleet_file(config).index
    service = OBJECTS["Service"]
    (port,) = service["spec"]["ports"]
    assert index.neighbour == f"http://{service['metadata']['name']}:{port['port']}"
    *_, replicas = OBJECTS["NetworkPolicy"]["spec"]["egress"]
    assert [each["port"] for each in replicas["ports"]] == [CONTAINER["ports"][0]["containerPort"]]
    assert replicas["to"] == [{"podSelector": OBJECTS["Deployment"]["spec"]["selector"]}]
    *_, volume = POD["spec"]["volumes"]
    *_, mount = CONTAINER["volumeMounts"]
    (item,) = volume["secret"]["items"]
    assert index.secret_file == f"{mount['mountPath']}/{item['path']}"


def test_the_memory_of_a_pod_has_room_for_what_kvbraid_may_use() -> None:
    limit = CONTAINER["resources"]["limits"]["memory"]
    config = read_fleet_file(FOLDER / "fleet.toml")
    used = (config.index.memory_limit_bytes or 0) + config.limits.bodies_bytes
    assert 0 < used < int(limit[:-2]) * UNITS[limit[-2:]]


def test_requests_in_flight_have_their_time_to_end() -> None:
    pause = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause + ForwardingOptions().end_s < POD["spec"]["terminationGracePeriodSeconds"]


def test_the_container_starts_with_its_configuration_and_its_probes_are_answered(
    tmp_path: Path,
) -> None:
    config = tmp_path / "fleet.toml"
    text = (FOLDER / "fleet.toml").read_text()
    assert 'service = "engines"' in text  # No API server is there, and nobody waits for it.
    config.write_text(text.replace("/var/lib/kvbraid", str(tmp_path / "snapshots")))
    assert MOUNTED in CONTAINER["args"]
    arguments = [str(config) if each == MOUNTED else each for each in CONTAINER["args"]]
    with started([sys.executable, "-c", MAIN, *arguments, "--port", "0"]) as (_, url):
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            path = CONTAINER[probe]["httpGet"]["path"]
            answer = httpx.get(f"{url.replace('0.0.0.0', '127.0.0.1')}{path}")
            assert answer.status_code == 200, (probe, answer.text)
