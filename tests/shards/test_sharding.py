"""Which shard a pod is of: the same in every process, evenly spread, and stable when one is added.

And what follows for configurations, names and tables that find pods.
"""

from collections import Counter
from pathlib import Path

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.fleet import FleetIndex
from kvbraid.ids import PodId
from kvbraid.service.config import DiscoverEntry, Discovery, FleetConfig
from kvbraid.service.discovery import FollowedName
from kvbraid.service.fleet_file import examine, override, read_fleet_file
from kvbraid.service.http.server import following
from kvbraid.service.in_force import MASK, InForce
from kvbraid.service.registry import Service
from kvbraid.service.replicas import SharedTable
from kvbraid.service.serve import new_service
from kvbraid.service.sharding import Shard, shard_of

from tests.service.fakes import FakeFeed

PODS = [PodId(f"pod-{number}") for number in range(3000)]
FRONT = '[shared]\nshards = ["http://10.0.0.1:8090", "https://b", "http://[::1]:80/"]\n'
POD = '[[pods]]\nid = "{}"\nmodel = "m"\nendpoint = "tcp://127.0.0.1:1"\n'


def test_every_version_gives_a_pod_to_the_same_shard() -> None:
    names = ("a", "pod-1", "vllm/10.0.0.7", "ä", "")
    assert [shard_of(PodId(name), 3) for name in names] == [2, 2, 2, 1, 3]
    assert {shard_of(pod, 1) for pod in PODS} == {1}


def test_pods_are_spread_evenly_and_move_to_a_new_shard_alone() -> None:
    counts = Counter(shard_of(pod, 3) for pod in PODS)
    assert set(counts) == {1, 2, 3}
    assert min(counts.values()) > 900
    moved = [pod for pod in PODS if shard_of(pod, 4) != shard_of(pod, 3)]
    assert {shard_of(pod, 4) for pod in moved} == {4}
    assert 650 < len(moved) < 850


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "1/65", "a/b", "1/3 ", "01/3", "-1/3"])
def test_no_other_text_is_a_shard(text: str) -> None:
    with pytest.raises(InvalidValueError, match="NUMBER/OF"):
        Shard.read(text)
    assert str(Shard.read("2/3")) == "2/3"


def write(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('shard = "4/3"', "NUMBER/OF"),
        ('shard = "1/3"\nshards = ["http://a"]', "not both"),
        ('shards = ["a:80"]', r"shards\[0\] = 'a:80'"),
        ('shards = ["http://u:p@a"]', r"shards\[0\]"),
        ('shards = ["http://a/path"]', r"shards\[0\]"),
        ('shards = ["http://a", "http://a"]', "twice"),
        ('shard_key = "k"', "give shards"),
        ('shards = ["http://a"]\nshard_answer_s = 0', "shard_answer_s"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, table: str, fault: str) -> None:
    config, faults = examine(write(tmp_path, f"[shared]\n{table}\n"))
    assert config is None
    with pytest.raises(InvalidValueError, match=fault):
        read_fleet_file(tmp_path / "fleet.toml")
    assert len(faults) == 1


def test_one_file_serves_the_front_and_its_shards(tmp_path: Path) -> None:
    front = read_fleet_file(write(tmp_path, FRONT + 'shard_key = "secret"\n'))
    assert front.shared.own_shard is None
    shard = override(front, {"shard": "2/3"})
    assert shard.shared == SharedTable(shard="2/3")
    assert shard.flags == {"shard": "2/3"}
    for wrong in ("2/4", "5"):
        with pytest.raises(InvalidValueError):
            override(front, {"shard": wrong})
    assert InForce(front).answer().config["shared"]["shard_key"] == MASK


def test_a_server_registers_the_pods_of_its_shard_alone(tmp_path: Path) -> None:
    pods = "".join(POD.format(pod) for pod in PODS[:20])
    read = read_fleet_file(write(tmp_path, pods))
    found: list[PodId] = []
    for number in (1, 2, 3):
        config = override(read, {"shard": f"{number}/3"})
        service = new_service(config)
        with following(service, config):
            assert service.pods
            found += service.pods
    assert sorted(found) == sorted(PODS[:20])


def test_a_front_registers_all_pods_and_follows_none(tmp_path: Path) -> None:
    pods = "".join(POD.format(pod) for pod in PODS[:9])
    config = read_fleet_file(write(tmp_path, FRONT.replace("10.0.0.1", "127.0.0.1") + pods))
    service = new_service(config)
    with following(service, config):
        assert set(service.pods) == set(PODS[:9])
        assert service.front is not None
        assert not service.feed.status()
        assert service.missing() == ""


def test_a_name_finds_the_pods_of_a_shard_alone() -> None:
    addresses = [f"10.0.0.{number}" for number in range(1, 30)]
    found: list[PodId] = []
    for number in (1, 2, 3):
        service = Service(FleetIndex(), FakeFeed())
        service.shard = Shard(number, 3)
        entry = DiscoverEntry(name="vllm", port=8000, events_port=5557, model="m")
        FollowedName(Discovery(entry=entry), service, lambda _: addresses).look()
        found += service.pods
    assert sorted(found) == sorted(PodId(f"vllm/{address}") for address in addresses)
    assert FleetConfig().shared.own_shard is None
