"""docs/threat-model.md against the code: every limit it names is one, with its default."""

import inspect
import re
from pathlib import Path

import msgspec
from kvbraid.service.config import Limits
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.envoy import EnvoyOptions
from kvbraid.service.errors import ERRORS
from kvbraid.service.feeds.rank_feed import MAX_MESSAGE_BYTES
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.forwarding import ForwardingOptions
from kvbraid.service.http.connection import SLICE_BYTES
from kvbraid.service.indexing import IndexTable
from kvbraid.service.journal import LINES, PERIOD_S
from kvbraid.service.keys import RIGHTS
from kvbraid.service.routing import RouterTable

from tests.docs.markdown import firsts, tables

TEXT = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text(encoding="utf-8")


def test_the_limits_are_the_options_with_their_defaults() -> None:
    listed = dict(re.findall(r"^\| `([\w.]+)` \| (\w+) \|", TEXT, re.MULTILINE))
    options = {f"limits.{name}": value for name, value in msgspec.to_builtins(Limits()).items()}
    index = msgspec.to_builtins(IndexTable())
    options["router.most_bookings"] = RouterTable().most_bookings
    gateway = msgspec.to_builtins(ForwardingOptions())
    options |= {
        f"gateway.{name}": gateway[name]
        for name in ("requests", "queued", "queued_bytes", "kept_bytes")
    }
    envoy = EnvoyOptions()
    options |= {"envoy.streams": envoy.streams, "envoy.decide_s": f"{envoy.decide_s:g}"}
    console = msgspec.to_builtins(ConsoleOptions())
    options |= {f"console.{name}": console[name] for name in console if name != "prompts"}
    options |= {f"index.{name}": index[name] for name in index if name.endswith("_bytes")}
    assert listed == {
        name: "none" if value is None else str(value) for name, value in options.items()
    }


def test_the_codes_are_codes_with_their_statuses() -> None:
    named = re.findall(r"(\d{3}) `(\w+)`", TEXT)
    assert named
    assert all(ERRORS[code].status == int(status) for status, code in named)


def test_the_slice_is_the_one_that_is_parsed_at_once() -> None:
    assert f"slices of {SLICE_BYTES}," in TEXT


def test_the_limit_of_the_log_is_the_journals() -> None:
    limit = f"about one rank, {LINES} are written in {PERIOD_S:.0f} seconds"
    assert limit in " ".join(TEXT.split())


def test_the_limits_of_a_feed_are_the_subscribers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
    section = page.split("\n### Limits of a feed\n")[1].split("\n### ")[0]
    listed = re.findall(r"\| (\d+) MiB[^|]*\|", section)
    options = inspect.signature(Subscriber).parameters
    assert [int(number) << 20 for number in listed] == [
        MAX_MESSAGE_BYTES,
        options["queue_limit_bytes"].default,
        options["hold_limit_bytes"].default,
    ]


def test_each_right_has_its_row() -> None:
    (table,) = tables("threat-model.md", "Rights")
    assert firsts(table) == list(RIGHTS)
