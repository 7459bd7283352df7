"""What HAProxy tells of ends of requests, in datagrams."""

import asyncio
import socket

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.gateway.ends import hear, read_end
from kvbraid.service.forwarding import ForwardingOptions

from tests.service.route_pods import fleet, in_loop, until


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (b"200 r chosen --", "end"),
        (b"200 r chosen CD\n", "end"),  # The client left in the middle of the answer.
        (b"200 r chosen SH", "failed"),
        (b"200 r chosen SC", "failed"),
        (b"200 r chosen CH", "failed"),
        (b"200 r gateway1 --", "failed"),  # Another pod has answered, after the chosen one failed.
        (b"200 r <NOSRV> PR", "failed"),
        (b"503 r <NOSRV> PR", None),
        (b"0 r a --", None),
    ],
)
def test_a_line_tells_how_a_request_has_ended(line: bytes, event: str | None) -> None:
    report = read_end(line)
    assert (report and (report.pick, report.event)) == (event and ("r", event))


@pytest.mark.parametrize("line", [b"", b"200 r chosen", b"200 r chosen -- --", b"200 \xff a --"])
def test_any_other_line_is_none(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever int, split or decode say.
        read_end(line)


@in_loop
async def test_what_is_heard_is_counted_and_ends_bookings_alone() -> None:
    async with fleet(options=ForwardingOptions(ends="127.0.0.1:0")) as them:
        await them.gateway.start()
        counts = them.proxy.counts.ends
        hearing = await hear("127.0.0.1:0", them.service.picking, them.proxy.counts)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect(hearing.get_extra_info("sockname"))
            for line in (b"\x00" * 1024, b"", b"200 nobody chosen --", b"503 r <NOSRV> PR"):
                sender.send(line)
            await until(lambda: counts.total() == 4)
        hearing.close()
        assert counts == {"unreadable": 2, "reported": 1, "not_chosen": 1}
        assert them.service.picking.reports == {("end", "unknown"): 1}
        await asyncio.sleep(0)


@pytest.mark.parametrize("taken", ["127.0.0.1:99999", "no.such.host.invalid:1", "203.0.113.1:80"])
@in_loop
async def test_an_address_that_cannot_be_had_is_a_refusal(taken: str) -> None:
    async with fleet(options=ForwardingOptions(ends=taken)) as them:
        with pytest.raises(InvalidValueError, match=taken):
            await them.gateway.start()
