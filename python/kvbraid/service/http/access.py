"""Who may register and remove pods: a pure decision on the address, the flags and the token.

Everyone who reaches the port may read (score, pods, metrics). Even if everyone on this machine may
change the fleet, a page in a browser on this machine must not. So a change is refused unless its
Host header (the server's name) and its Origin header (the page's site) name this machine.
"""

import hmac
import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from kvbraid.errors import shortened
from kvbraid.service.config import ServerOptions
from kvbraid.service.errors import RefusalError

_NAME: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@\[\]\s]+)(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """With a token, every change needs the token; without one, changes are on or off.

    Attributes:
        hosts: Further names by which a change may call the server, besides this machine's own;
            None: any name.
    """

    token: str | None = None
    changes_allowed: bool = True
    hosts: frozenset[str] | None = None

    @classmethod
    def of(cls, options: ServerOptions) -> "Access":
        """Decide by address: changes are on if only this machine can connect."""
        is_local = is_loopback(options.host)
        is_guarded = is_local and options.token is None
        return cls(
            token=options.token,
            changes_allowed=options.allow_registration or is_local,
            hosts=frozenset(map(str.lower, options.allow_hosts)) if is_guarded else None,
        )

    def check(self, authorization: bytes, host: bytes, origin: bytes | None) -> None:
        """Refuse a change that these headers do not allow.

        Raises:
            RefusalError: `registration_off`, `unauthorized` or `foreign_host`.
        """
        if self.token is not None:
            scheme, _, given = authorization.partition(b" ")
            same = hmac.compare_digest(given.strip(), self.token.encode())
            if scheme.lower() != b"bearer" or not same:
                raise RefusalError("unauthorized", "the bearer token is missing or wrong")
            return
        if not self.changes_allowed:
            raise RefusalError(
                "registration_off",
                "changes (PUT, DELETE, POST /v1/routed, pick and picked) are off on this address",
            )
        if self.hosts is not None:
            self._check_name("host", host)
            if origin is not None:
                self._check_name("origin", origin.partition(b"://")[2])

    def _check_name(self, header: str, value: bytes) -> None:
        """Refuse a name that a page of another site could use."""
        assert self.hosts is not None
        found = _NAME.fullmatch(value.decode("latin-1").lower())
        name = found[1].strip("[]") if found else ""
        if not is_loopback(name) and name not in self.hosts:
            told = f"the {header} of this change is {shortened(value.decode('latin-1'))}"
            raise RefusalError("foreign_host", f"{told}, which is not a name of this machine")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address; a name other than localhost may not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
