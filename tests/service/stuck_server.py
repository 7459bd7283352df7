"""A process whose index never finishes the first batch that the given endpoint publishes.

Prints its address, then a line once the batch has come; ends by a signal.
"""

import sys
import threading
from collections.abc import Sequence

from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, PodConfig, ServerOptions
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.http.server import end_process, run_server
from kvbraid.service.registry import Service

from tests.service.fakes import FakeIndex
from tests.service.recording_sink import Applied, RecordingSink


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class StuckSink(RecordingSink):
    def apply_many(
        self, pod: PodId, payloads: Sequence[bytes], *, dp_rank: int = 0, budget_s: float
    ) -> list[Applied]:
        say("applying")
        threading.Event().wait()
        raise AssertionError("nobody sets it")


def main() -> None:
    pod = PodConfig(model="m", endpoint=sys.argv[1], replay_endpoint=sys.argv[2])
    config = FleetConfig(server=ServerOptions(port=0), pods={PodId("a"): pod})
    run_server(config, Service(FakeIndex(), Subscriber(StuckSink())), announce=say)
    end_process()


if __name__ == "__main__":
    main()
