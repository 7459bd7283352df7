"""Who may do what: a decision on the address, the flags, and the key that a request presents.

Invariant: what is decided, is decided by `rules`, which are replaced as a whole. So a key that was
revoked is refused from the next question on. Whoever asks again while a request goes on compares
`rules` by identity.

Without keys everyone who reaches the port may read. Even if everyone on this machine may change
the fleet, a page in a browser on this machine must not. So a change is refused unless its Host
header (the server's name) and its Origin header (the page's site) name this machine.
"""

import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kvbraid.errors import shortened
from kvbraid.service.answers import KeyRow
from kvbraid.service.config import ServerOptions
from kvbraid.service.errors import RefusalError
from kvbraid.service.keys import RIGHTS, TOKEN, KeyEntry, Right, digest

OPEN_RIGHTS: Final[tuple[Right, ...]] = ("read", "explain")
"""What needs no key, unless there are keys or the operator says otherwise."""

_NAME: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@\[\]\s]+)(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class _KnownKey:
    name: str
    digest: bytes
    rights: Sequence[Right]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts now. Without keys, changes are on or off; with one, everything else needs one.

    Attributes:
        keys: Those that are known, with their rights.
        open_rights: What needs no key.
        hosts: Further names by which a change may call the server, besides this machine's own;
            None: any name.
    """

    keys: Sequence[_KnownKey]
    open_rights: frozenset[Right]
    changes_allowed: bool
    hosts: frozenset[str] | None


class Access:
    """Decides what a request may do, and notes when each key was last used."""

    def __init__(
        self,
        *,
        token: str | None = None,
        keys: Sequence[KeyEntry] = (),
        open_rights: Collection[Right] | None = None,
        changes_allowed: bool = True,
        hosts: frozenset[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        known = [_KnownKey(each.name, bytes.fromhex(each.sha256), each.rights) for each in keys]
        if token is not None:
            known.append(_KnownKey(TOKEN, digest(token.encode()), RIGHTS))
        usual: Collection[Right] = () if keys else OPEN_RIGHTS
        self.rules = Rules(
            keys=known,
            open_rights=frozenset(usual if open_rights is None else open_rights),
            changes_allowed=changes_allowed,
            hosts=hosts,
        )
        self._clock = clock
        self._used: dict[bytes, float] = {}  # By the hash: a new key of an old name is unused.

    @classmethod
    def of(cls, options: ServerOptions, keys: Sequence[KeyEntry] = ()) -> "Access":
        """Decide by address: changes are on if only this machine can connect."""
        is_local = is_loopback(options.host)
        is_guarded = is_local and options.token is None and not keys
        return cls(
            token=options.token,
            keys=keys,
            open_rights=options.open_rights,
            changes_allowed=options.allow_registration or is_local,
            hosts=frozenset(map(str.lower, options.allow_hosts)) if is_guarded else None,
        )

    def change(self, options: ServerOptions, keys: Sequence[KeyEntry]) -> None:
        """Decide by others from the next question on."""
        rules = Access.of(options, keys).rules
        known = {key.digest for key in rules.keys}
        used = dict(self._used)  # The event loop may be noting another use.
        self._used = {each: at for each, at in used.items() if each in known}
        self.rules = rules

    def rows(self) -> list[KeyRow]:
        """Return the keys, and when each was last used."""
        used = self._used
        return [
            KeyRow(name=key.name, rights=list(key.rights), last_used=used.get(key.digest))
            for key in self.rules.keys
        ]

    def is_open(self, right: Right) -> bool:
        """Whether something needs no key."""
        return right in self.rules.open_rights

    def check(
        self, right: Right | None, authorization: bytes, host: bytes, origin: bytes | None
    ) -> None:
        """Refuse what these headers do not allow; None is allowed to everybody.

        Raises:
            RefusalError: `unauthorized`, `right_missing`, `registration_off` or `foreign_host`.
        """
        rules = self.rules
        if right is None or right in rules.open_rights:
            return
        if rules.keys or right in OPEN_RIGHTS:
            self._check_key(rules, right, authorization)
            return
        if not rules.changes_allowed:
            raise RefusalError(
                "registration_off",
                "changes (PUT, DELETE, POST /v1/routed, pick, picked) and snapshots are off here",
            )
        if rules.hosts is not None:
            _check_name("host", host, rules.hosts)
            if origin is not None:
                _check_name("origin", origin.partition(b"://")[2], rules.hosts)

    def _check_key(self, rules: Rules, right: Right, authorization: bytes) -> None:
        scheme, _, given = authorization.partition(b" ")
        hashed, found = digest(given.strip()), None
        for key in rules.keys:  # All of them, so that the time tells nothing.
            if hmac.compare_digest(key.digest, hashed):
                found = key
        if found is None or scheme.lower() != b"bearer":
            raise RefusalError("unauthorized", "the bearer token is missing or wrong")
        self._used[found.digest] = self._clock()
        if right not in found.rights:
            rights = ", ".join(found.rights)
            told = f"key {found.name} has no right {right}, which this needs; it has {rights}"
            raise RefusalError("right_missing", told)


def _check_name(header: str, value: bytes, hosts: Collection[str]) -> None:
    """Refuse a name that a page of another site could use."""
    found = _NAME.fullmatch(value.decode("latin-1").lower())
    name = found[1].strip("[]") if found else ""
    if not is_loopback(name) and name not in hosts:
        told = f"the {header} of this change is {shortened(value.decode('latin-1'))}"
        raise RefusalError("foreign_host", f"{told}, which is not a name of this machine")


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address; a name other than localhost may not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
