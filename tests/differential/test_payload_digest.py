"""The digests of two payloads differ exactly if their bytes do."""

from hypothesis import given
from hypothesis import strategies as st
from kvbraid._native import PayloadDigest

PAYLOADS = st.lists(st.binary(max_size=300), max_size=8)


@given(payloads=PAYLOADS)
def test_payloads_have_one_digest_exactly_if_their_bytes_are_equal(payloads: list[bytes]) -> None:
    """Many at once give what each gives alone."""
    digest = PayloadDigest()
    digests = digest.of_each(payloads)
    assert digests == [digest.of(payload) for payload in payloads]
    assert len(set(digests)) == len(set(payloads))


def test_nobody_can_compute_a_digest_outside() -> None:
    """Two keys give two digests."""
    assert PayloadDigest().of(b"payload") != PayloadDigest().of(b"payload")
