"""A front asks shards over TLS, if it trusts who has signed their certificates."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme
from kvbraid.fleet import Request
from kvbraid.ids import PodId, PodState
from kvbraid.service.replicas import SharedTable
from kvbraid.service.shards.front import Front

from tests.service.serving import POD, serving, until

TLS = '[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\n[server]\nready_after_s = 0\n'


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a shard, and the certificate of who has signed its own."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    made.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    pod = POD.format(name="a", url="http://a:1", folder=folder)
    (folder / "fleet.toml").write_text(TLS + pod)
    with serving("--config", str(folder / "fleet.toml"), "--shard", "1/1") as (_, url):
        yield url, folder / "ca.pem"


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_shard_is_asked_over_tls_if_its_certificate_is_trusted(
    shard: tuple[str, Path], is_trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, authority = shard
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with closing(Front(SharedTable(shards=[url], shard_answer_s=5.0), None)) as front:
        front.register(PodId("a"), model="m")
        ends = until(lambda: front.problem, lambda told: not told or "CERTIFICATE" in told)
        assert ("CERTIFICATE_VERIFY_FAILED" in ends) is not is_trusted
        columns = front.score(Request(model="m", token_ids=range(100_000))).columns()
        assert columns.ranks == (("a", 0),)
        assert columns.states == (PodState.STALE if is_trusted else PodState.DEGRADED,)
