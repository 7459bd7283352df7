"""A log of events in a real nats-server: what a relay writes, and what late replicas know."""

from pathlib import Path

import pytest
from kvbraid.ids import PodState

from tests.shared.logs import engines, jetstream, reading, relaying, table
from tests.shared.replicas import NATS, comes

pytestmark = pytest.mark.skipif(NATS is None, reason="needs nats-server")
ONE = ("gpt-oss-sim",)


def test_a_late_replica_answers_every_request_as_one_that_follows_the_engines(
    tmp_path: Path,
) -> None:
    with jetstream(tmp_path) as server, engines() as fleet, reading() as live:
        live.add(fleet)
        with relaying(table(server), fleet) as relay:
            fleet.serve(300)
            assert live.knows(fleet)
            assert relay.has(fleet.seqs())
            assert relay.counts["stored"] == sum(fleet.seqs().values()) + 4
            with reading(table(server)) as late:
                late.add(fleet, replay=False)  # The log alone.
                assert late.knows(fleet)
                answers = late.answers(fleet)
                assert len(answers) == 300
                assert answers == live.answers(fleet)
                assert {row[3] for rows in answers for row in rows} == {"exact"}
                fleet.serve(30)
                assert late.knows(fleet)
                assert live.knows(fleet)
                assert late.answers(fleet) == live.answers(fleet)
