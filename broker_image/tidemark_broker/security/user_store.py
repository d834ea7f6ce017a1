"""The users as the controller told of them last: whose passwords are whose, who may do what, and
how much of it.

In memory only, the whole truth each time. Before it came for the first time ``known`` is False, and
a broker lets nobody in that has a listener where clients prove who they are, or whose cluster has
ACLs.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from tidemark.wire.users import UserState, UserStatesRequest
from tidemark_broker.quotas.client_quotas import ClientQuotas
from tidemark_broker.quotas.rate import Windows
from tidemark_broker.quotas.table import QuotaTable
from tidemark_broker.security.authorizer import Authorizer, Permissions
from tidemark_broker.security.scram import Credential

_NO_USERS = UserStatesRequest(
    controller_epoch=-1, authorize=False, super_users=(), users=(), quotas=()
)
#: What a stranger's credential looks like where no user has any: as the operator makes them.
_ITERATIONS, _SALT_BYTES = 8192, 32
_KEY_BYTES = MappingProxyType({1: 32, 2: 64})


@dataclass(frozen=True, slots=True)
class _Strangers:
    """How names are answered that nobody has: as those of users would be. The salts must not tell
    them apart either: they follow from the name and from what only this cluster's brokers know,
    the same on all of them, whoever comes and goes."""

    secret: bytes
    shapes: Mapping[int, tuple[tuple[int, int], ...]]

    def credential(self, name: str, mechanism: int) -> Credential:
        """No password fits."""
        drawn = hmac.digest(self.secret, f"{mechanism}:{name}".encode(), "sha512")
        shapes = self.shapes.get(mechanism) or ((_ITERATIONS, _SALT_BYTES),)
        iterations, salt_bytes = shapes[_number(drawn) % len(shapes)]
        size = _KEY_BYTES[mechanism]
        return Credential(
            mechanism=mechanism,
            iterations=iterations,
            salt=hashlib.shake_256(b"salt" + drawn).digest(salt_bytes),
            stored_key=hashlib.shake_256(b"stored" + drawn).digest(size),
            server_key=hashlib.shake_256(b"server" + drawn).digest(size),
        )

    def mechanism(self, name: str) -> int:
        """By which its password is checked, of those that users have: how long that takes would
        tell, too."""
        kinds = sorted(self.shapes) or [2]
        drawn = hmac.digest(self.secret, f"kind:{name}".encode(), "sha512")
        return kinds[_number(drawn) % len(kinds)]


def _number(drawn: bytes) -> int:
    return int.from_bytes(drawn[:4], "big")


@dataclass(frozen=True, slots=True)
class Users:
    """One state of them, made ready to be asked: any thread."""

    by_name: Mapping[str, UserState]
    credentials: Mapping[tuple[str, int], Credential]
    strangers: _Strangers
    authorizer: Authorizer
    quotas: QuotaTable

    @classmethod
    def of(cls, states: UserStatesRequest, *, if_none: bool) -> Self:
        """As the controller told of it."""
        credentials = {
            (user.name, each.mechanism): Credential(
                mechanism=each.mechanism,
                iterations=each.iterations,
                salt=each.salt,
                stored_key=each.stored_key,
                server_key=each.server_key,
            )
            for user in states.users
            for each in user.scram
            if each.mechanism in _KEY_BYTES and each.iterations > 0
        }
        return cls(
            MappingProxyType({user.name: user for user in states.users}),
            MappingProxyType(credentials),
            _strangers(credentials, states.strangers_key),
            Authorizer(states, if_none=if_none),
            QuotaTable(states.quotas),
        )


class UserStore:
    """Belongs to the broker's loop. ``if_none``: ``allow.everyone.if.no.acl.found``."""

    def __init__(self, *, if_none: bool = False, windows: Windows | None = None) -> None:
        self._if_none = if_none
        self.quotas = ClientQuotas(windows)
        self.known = False
        #: Whether ACLs will decide, as the controller has said with the partitions.
        self.awaited = False
        self._present = self.prepared(_NO_USERS)

    def prepared(self, states: UserStatesRequest) -> Users:
        """What :meth:`take` is given. Of ten thousand users it takes seconds: any thread."""
        return Users.of(states, if_none=self._if_none)

    def take(self, users: Users) -> None:
        """These are all; what was known before is forgotten."""
        self._present = users
        self.quotas.apply(users.quotas)
        self.known = True

    def apply(self, states: UserStatesRequest) -> None:
        """Both at once."""
        self.take(self.prepared(states))

    @property
    def users(self) -> Mapping[str, UserState]:
        """All, by their names."""
        return self._present.by_name

    @property
    def authorizer(self) -> Authorizer:
        """Another one each time that users have changed."""
        return self._present.authorizer

    def permissions(self, principal: str, host: str) -> Permissions | None:
        """See :meth:`Authorizer.permissions`."""
        return self.authorizer.permissions(principal, host)

    def credential(self, name: str, mechanism: int) -> Credential:
        """The user's, or a stranger's that no password fits."""
        own = self._present.credentials.get((name, mechanism))
        return self._present.strangers.credential(name, mechanism) if own is None else own

    def password_credential(self, name: str) -> Credential:
        """By which a password is checked that was sent as it is: the user's newest kind."""
        for mechanism in (2, 1):
            own = self._present.credentials.get((name, mechanism))
            if own is not None:
                return own
        return self._present.strangers.credential(name, self._present.strangers.mechanism(name))

    def is_current(self, name: str, credential: Credential) -> bool:
        """Would the user still be let in by it?"""
        return self._present.credentials.get((name, credential.mechanism)) == credential


def _strangers(
    credentials: Mapping[tuple[str, int], Credential], strangers_key: bytes
) -> _Strangers:
    ordered = sorted(credentials.items(), key=lambda item: item[0])
    shapes: dict[int, list[tuple[int, int]]] = {}
    for (_, mechanism), credential in ordered:
        shapes.setdefault(mechanism, []).append((credential.iterations, len(credential.salt)))
    # Of an older operator, which tells of no key: what only brokers know of two users.
    keys = b"".join(each.server_key for _, each in (ordered[:1] + ordered[-1:]))
    return _Strangers(
        secret=strangers_key or hashlib.sha256(b"strangers" + keys).digest(),
        shapes=MappingProxyType({kind: tuple(found) for kind, found in shapes.items()}),
    )
