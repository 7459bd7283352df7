"""Who may register and remove pods: a pure decision on the address, the flags and the token.

Reading (score, pods, metrics) is open to whoever reaches the port.
"""

import hmac
import ipaddress
from dataclasses import dataclass

from kvbraid.service.errors import RefusalError


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """With a token every change needs it; without one, changes are on or off."""

    token: str | None = None
    changes_allowed: bool = True

    @classmethod
    def of(cls, *, host: str, token: str | None, allow_registration: bool) -> "Access":
        """Decide by address: changes are on where only this machine can connect."""
        return cls(token=token, changes_allowed=allow_registration or is_loopback(host))

    def check(self, authorization: bytes) -> None:
        """Refuse a change that the header does not entitle to.

        Raises:
            RefusalError: `registration_off` or `unauthorized`.
        """
        if self.token is None:
            if not self.changes_allowed:
                raise RefusalError("registration_off", "PUT and DELETE are off on this address")
            return
        scheme, _, given = authorization.partition(b" ")
        same = hmac.compare_digest(given.strip(), self.token.encode())
        if scheme.lower() != b"bearer" or not same:
            raise RefusalError("unauthorized", "the bearer token is missing or wrong")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address; a name other than localhost may not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
