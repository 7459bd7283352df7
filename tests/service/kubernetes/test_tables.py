"""The tables of fleet.toml that follow Kubernetes."""

from pathlib import Path
from typing import get_args

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.service.fleet_file import read_fleet_file
from kvbraid.service.kubernetes.objects import WhyNot

from tests.docs.markdown import codes, tables
from tests.service.kubernetes.following import TABLE


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('selector = "a=b"', "give one of these: a service, a selector of its EndpointSlices"),
        ('pods = "a=b"', "give one of these: a service"),
        ('pool = "p"', "give one of these: a service"),
        ('pool = "P_"', "kubernetes[0].pool"),
        ('url = "http://h:1"', "url = 'http://h:1'; give port"),
        ('api = "http://kubernetes.default.svc"', "give https://HOST:PORT; http, where anybody"),
        ('namespace = "A/B"', "kubernetes[0].namespace"),
        ('replay_port = "-"', "kubernetes[0].replay_port"),
        ('model_config = "nothing.json"', "model_config: "),
        ("dp_size = 1024\nreplay_port = 65000", "ends at port 66023"),
    ],
)
def test_a_table_that_nobody_can_follow_is_refused(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(TABLE + line)
    with pytest.raises(InvalidValueError, match="kubernetes") as refused:
        read_fleet_file(path)
    assert told in str(refused.value)


def test_the_page_explains_each_outcome() -> None:
    (table,) = tables("configuration.md", "Pods of Kubernetes")
    ours = {"listed", "watched", "bad_object", "not_registered", "held", "too_many_pods"}
    assert {code for row in table for code in codes(row[0])} == ours | {*get_args(WhyNot)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TABLE.replace("service", "pool"), "port = 'http'; give no port: the pool has"),
        (TABLE.replace('port = "http"\n', ""), "give a port, to which requests go"),
        (TABLE.replace('service = "engines"\n', ""), "give one of these: a service"),
    ],
)
def test_a_pool_has_ports_and_everything_else_needs_one(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(InvalidValueError) as refused:
        read_fleet_file(path)
    assert told in str(refused.value)
