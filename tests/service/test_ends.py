"""What HAProxy tells of ends of requests, in datagrams."""

import asyncio
import socket

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.fleet.request import Request
from kvbraid.gateway.ends import End, Ends, hear, read_end
from kvbraid.service.forwarding import ForwardingOptions

from tests.service.route_pods import fleet, greets, in_loop, until


@pytest.mark.parametrize(
    ("line", "end"),
    [
        (b"200 r chosen --", End("r", is_served=True, is_passed_over=False)),
        # The client left in the middle of the answer.
        (b"200 r chosen CD\n", End("r", is_served=True, is_passed_over=False)),
        (b"200 r chosen SH", End("r", is_served=False, is_passed_over=False)),
        (b"200 r chosen SC", End("r", is_served=False, is_passed_over=False)),
        (b"200 r chosen CH", End("r", is_served=False, is_passed_over=False)),
        (b"200 r gateway1 --", End("r", is_served=False, is_passed_over=True)),
        (b"200 r <NOSRV> PR", End("r", is_served=False, is_passed_over=False)),
        (b"503 r <NOSRV> PR", None),
        (b"0 r a --", None),
    ],
)
def test_a_line_tells_how_a_request_has_ended(line: bytes, end: End | None) -> None:
    assert read_end(line) == end


@pytest.mark.parametrize("line", [b"", b"200 r chosen", b"200 r chosen -- --", b"200 \xff a --"])
def test_any_other_line_is_none(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever int, split or decode say.
        read_end(line)


@in_loop
async def test_what_is_heard_is_counted_and_ends_bookings_alone() -> None:
    async with fleet(options=ForwardingOptions(ends="127.0.0.1:0")) as them:
        await them.gateway.start()
        counts = them.proxy.counts.ends
        hearing = await hear(
            "127.0.0.1:0", them.service.picking, them.proxy.fleet, them.proxy.counts
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect(hearing.get_extra_info("sockname"))
            for line in (b"\x00" * 1024, b"", b"200 nobody chosen --", b"503 r <NOSRV> PR"):
                sender.send(line)
            await until(lambda: counts.total() == 4)
        hearing.close()
        assert counts == {"unreadable": 2, "reported": 1, "not_chosen": 1}
        assert them.service.picking.reports == {("end", "unknown"): 1}
        await asyncio.sleep(0)


@in_loop
async def test_a_pod_that_is_passed_over_in_a_row_is_left_alone_and_one_that_serves_is_not() -> (
    None
):
    async with fleet(greets, options=ForwardingOptions(failures=2)) as them:
        end = Ends(them.service.picking, them.proxy.fleet, them.proxy.counts)

        def hears(*servers: bytes) -> None:
            for server in servers:
                them.service.picking.choose("r", Request(model="m", token_ids=[1]))
                end.datagram_received(b"200 r %b --" % server, None)

        hears(b"gateway1", b"chosen", b"gateway2")
        end.datagram_received(b"200 stranger gateway1 --", None)
        assert not them.proxy.fleet.resting
        hears(b"gateway1")
        assert them.proxy.fleet.resting == {"a"}
        assert them.proxy.counts.failures == {"passed_over": 3}


@pytest.mark.parametrize("taken", ["127.0.0.1:99999", "no.such.host.invalid:1", "203.0.113.1:80"])
@in_loop
async def test_an_address_that_cannot_be_had_is_a_refusal(taken: str) -> None:
    async with fleet(options=ForwardingOptions(ends=taken)) as them:
        with pytest.raises(InvalidValueError, match=taken):
            await them.gateway.start()
