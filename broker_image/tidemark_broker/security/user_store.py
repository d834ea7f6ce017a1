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

from tidemark.wire.users import UserState, UserStatesRequest
from tidemark_broker.quotas.client_quotas import ClientQuotas
from tidemark_broker.quotas.rate import Windows
from tidemark_broker.security.authorizer import Authorizer, Permissions
from tidemark_broker.security.scram import Credential

_NO_USERS = UserStatesRequest(
    controller_epoch=-1, authorize=False, super_users=(), users=(), quotas=()
)
#: What a stranger's credential looks like where no user has any.
_ITERATIONS, _SALT_BYTES = 4096, 16
_KEY_BYTES = MappingProxyType({1: 32, 2: 64})


@dataclass(frozen=True, slots=True)
class _Strangers:
    """How names are answered that nobody has: as those of users would be. The salts must not tell
    them apart either: they follow from the name and from what only this cluster's brokers know,
    the same on all of them."""

    secret: bytes
    shapes: Mapping[int, tuple[tuple[int, int], ...]]

    def credential(self, name: str, mechanism: int) -> Credential:
        """No password fits."""
        drawn = hmac.digest(self.secret, f"{mechanism}:{name}".encode(), "sha512")
        shapes = self.shapes.get(mechanism) or ((_ITERATIONS, _SALT_BYTES),)
        iterations, salt_bytes = shapes[int.from_bytes(drawn[:4], "big") % len(shapes)]
        size = _KEY_BYTES[mechanism]
        return Credential(
            mechanism=mechanism,
            iterations=iterations,
            salt=hashlib.shake_256(b"salt" + drawn).digest(salt_bytes),
            stored_key=hashlib.shake_256(b"stored" + drawn).digest(size),
            server_key=hashlib.shake_256(b"server" + drawn).digest(size),
        )


class UserStore:
    """Belongs to the broker's loop. ``if_none``: ``allow.everyone.if.no.acl.found``."""

    def __init__(self, *, if_none: bool = False, windows: Windows | None = None) -> None:
        self._if_none = if_none
        self.quotas = ClientQuotas(windows)
        self.known = False
        #: Whether ACLs will decide, as the controller has said with the partitions.
        self.awaited = False
        self.users: Mapping[str, UserState] = MappingProxyType({})
        self._put(_NO_USERS)

    def apply(self, states: UserStatesRequest) -> None:
        """Take over all of it; what was known before is forgotten."""
        self._put(states)
        self.known = True

    def _put(self, states: UserStatesRequest) -> None:
        self.quotas.apply(states.quotas)
        self.users = MappingProxyType({user.name: user for user in states.users})
        self.authorizer = Authorizer(states, if_none=self._if_none)
        self._credentials = {
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
        self._strangers = _strangers(self._credentials)

    def permissions(self, principal: str, host: str) -> Permissions | None:
        """See :meth:`Authorizer.permissions`."""
        return self.authorizer.permissions(principal, host)

    def credential(self, name: str, mechanism: int) -> Credential:
        """The user's, or a stranger's that no password fits."""
        own = self._credentials.get((name, mechanism))
        return self._strangers.credential(name, mechanism) if own is None else own

    def password_credential(self, name: str) -> Credential:
        """By which a password is checked that was sent as it is: the user's newest kind."""
        for mechanism in (2, 1):
            own = self._credentials.get((name, mechanism))
            if own is not None:
                return own
        kinds = sorted({mechanism for _, mechanism in self._credentials}) or [2]
        return self._strangers.credential(name, kinds[-1])

    def is_current(self, name: str, credential: Credential) -> bool:
        """Would the user still be let in by it?"""
        return self._credentials.get((name, credential.mechanism)) == credential


def _strangers(credentials: Mapping[tuple[str, int], Credential]) -> _Strangers:
    ordered = sorted(credentials.items(), key=lambda item: item[0])
    shapes: dict[int, list[tuple[int, int]]] = {}
    for (_, mechanism), credential in ordered:
        shapes.setdefault(mechanism, []).append((credential.iterations, len(credential.salt)))
    # Of two users: none of them knows both keys, and seldom does either change.
    keys = b"".join(each.server_key for _, each in (ordered[:1] + ordered[-1:]))
    return _Strangers(
        secret=hashlib.sha256(b"strangers" + keys).digest(),
        shapes=MappingProxyType({kind: tuple(found) for kind, found in shapes.items()}),
    )
