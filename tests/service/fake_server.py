"""A process that serves fakes: prints its address, counts, and ends by a signal.

The arguments: how many seconds an explanation takes, on the thread pool; how many pods there are;
how many seconds a client has for anything.
"""

import sys
import threading

from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig, Limits, PodConfig, ServerOptions
from kvbraid.service.http.server import end_process, run_server
from kvbraid.service.registry import Service

from tests.service.fakes import FakeExplanation, FakeFeed, FakeIndex, FakeScores


class SlowIndex(FakeIndex):
    """Explains after `seconds`, and says on stdout that it has begun."""

    seconds = 0.0

    def explain(self, request: Request) -> FakeExplanation:
        sys.stdout.write("explaining\n")
        sys.stdout.flush()
        threading.Event().wait(self.seconds)
        return super().explain(request)

    def score(self, request: Request, *, with_seen: bool = False) -> FakeScores:
        del with_seen
        return FakeScores(request, self._ranks(request), self.promised)


def main() -> None:
    index = SlowIndex()
    index.seconds = float(sys.argv[1])
    num_pods = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    pods = {
        PodId(f"pod-{n}"): PodConfig(model="m", endpoint=f"tcp://h:{n + 1}")
        for n in range(num_pods)
    }
    patience_s = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    limits = Limits(request_s=patience_s, idle_s=patience_s)
    config = FleetConfig(server=ServerOptions(port=0), pods=pods, limits=limits)

    def announce(url: str) -> None:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()

    run_server(config, Service(index, FakeFeed(), limits=limits), announce=announce)
    end_process()


if __name__ == "__main__":
    main()
