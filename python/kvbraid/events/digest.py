"""What tells payloads apart when their bytes are not kept: 64 bits, equal for equal bytes.

Keyed at random in each process, so that nobody outside can make two payloads that are taken for
one.
"""

from kvbraid._native import PayloadDigest

_payloads = PayloadDigest()

digest_of = _payloads.of
digests_of = _payloads.of_each
