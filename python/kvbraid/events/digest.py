"""A digest by which payloads are compared when their bytes are not kept: 64 bits.

Equal bytes have equal digests. The key is drawn at random in each process, so nobody outside can
make two different payloads with one digest.
"""

from kvbraid._native import PayloadDigest

_payloads = PayloadDigest()

digest_of = _payloads.of
digests_of = _payloads.of_each
