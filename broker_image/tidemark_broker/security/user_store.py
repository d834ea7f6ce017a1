"""Users as received from the controller: credentials, ACLs and quotas.

In memory only; each update replaces everything. Before the first one ``known`` is False. The broker
then rejects clients if any listener authenticates, or if the cluster has ACLs.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from tidemark.wire.users import UserState, UserStatesRequest
from tidemark_broker.admission.client_quotas import ClientQuotas, QuotaTable
from tidemark_broker.admission.rate import Windows
from tidemark_broker.security.authorizer import Authorizer, Permissions
from tidemark_broker.security.scram import Credential

_NO_USERS = UserStatesRequest(
    controller_epoch=-1, authorize=False, super_users=(), users=(), quotas=()
)
#: Parameters of a stranger's credential without any real one, as the operator creates them.
_ITERATIONS, _SALT_BYTES = 8192, 32
_KEY_BYTES = MappingProxyType({1: 32, 2: 64})


@dataclass(frozen=True, slots=True)
class _DecoyCredentials:
    """Credentials for unknown names, indistinguishable from those of users.

    Salts must not distinguish them either. They are derived from the name and a secret of the
    cluster's brokers, so they are stable and equal on all brokers.
    """

    secret: bytes
    shapes: Mapping[int, tuple[tuple[int, int], ...]]

    def credential(self, name: str, mechanism: int) -> Credential:
        """Return a credential that no password fits."""
        drawn = hmac.digest(self.secret, f"{mechanism}:{name}".encode(), "sha512")
        # Iterations and salt sizes are drawn from real ones, or they would reveal decoys.
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
        """Return the mechanism for the password check, among those in use.

        Its duration would tell otherwise.
        """
        kinds = sorted(self.shapes) or [2]
        drawn = hmac.digest(self.secret, f"kind:{name}".encode(), "sha512")
        return kinds[_number(drawn) % len(kinds)]


def _number(drawn: bytes) -> int:
    return int.from_bytes(drawn[:4], "big")


@dataclass(frozen=True, slots=True)
class UserSnapshot:
    """One immutable state of the users. Usable from any thread."""

    by_name: Mapping[str, UserState]
    credentials: Mapping[tuple[str, int], Credential]
    decoys: _DecoyCredentials
    authorizer: Authorizer
    quotas: QuotaTable

    @classmethod
    def of(cls, states: UserStatesRequest, *, if_none: bool) -> Self:
        """Convert the controller's message to a snapshot.

        ``if_none``: whether an operation is allowed on a resource without ACLs.
        """
        # Unknown mechanisms, of a newer operator, are skipped instead of failing the update.
        credentials = {
            (user.name, scram.mechanism): Credential(
                mechanism=scram.mechanism,
                iterations=scram.iterations,
                salt=scram.salt,
                stored_key=scram.stored_key,
                server_key=scram.server_key,
            )
            for user in states.users
            for scram in user.scram
            if scram.mechanism in _KEY_BYTES and scram.iterations > 0
        }
        return cls(
            MappingProxyType({user.name: user for user in states.users}),
            MappingProxyType(credentials),
            # Credentials to answer unknown names with, stable as long as the controller's key.
            _decoys(credentials, states.strangers_key),
            Authorizer(states, if_none=if_none),
            QuotaTable(states.quotas),
        )


class UserStore:
    """Current state of the users.

    Used from the broker's loop. ``if_none``: ``allow.everyone.if.no.acl.found``.
    """

    def __init__(self, *, if_none: bool = False, windows: Windows | None = None) -> None:
        self._if_none = if_none
        self.quotas = ClientQuotas(windows)
        self.known = False
        #: Whether the controller has announced users with the partition states.
        self.awaited = False
        self._present = self.prepared(_NO_USERS)

    def prepared(self, states: UserStatesRequest) -> UserSnapshot:
        """Convert users for :meth:`take`.

        Takes seconds for ten thousand users; may run in any thread.
        """
        return UserSnapshot.of(states, if_none=self._if_none)

    def take(self, users: UserSnapshot) -> None:
        """Replace all users and quotas."""
        self._present = users
        # Both change in the same turn of the loop.
        self.quotas.apply(users.quotas)
        self.known = True

    def apply(self, states: UserStatesRequest) -> None:
        """Convert and replace the users."""
        self.take(self.prepared(states))

    @property
    def users(self) -> Mapping[str, UserState]:
        """All users, by name."""
        return self._present.by_name

    @property
    def authorizer(self) -> Authorizer:
        """The current authorizer; a new object each time users change."""
        return self._present.authorizer

    def permissions(self, principal: str, host: str) -> Permissions | None:
        """Return permissions. See :meth:`Authorizer.permissions`."""
        return self.authorizer.permissions(principal, host)

    def credential(self, name: str, mechanism: int) -> Credential:
        """Return the user's credential, or that of a stranger."""
        own = self._present.credentials.get((name, mechanism))
        return self._present.decoys.credential(name, mechanism) if own is None else own

    def password_credential(self, name: str) -> Credential:
        """Return the credential for a password check, preferably the stronger mechanism."""
        for mechanism in (2, 1):
            own = self._present.credentials.get((name, mechanism))
            if own is not None:
                return own
        return self._present.decoys.credential(name, self._present.decoys.mechanism(name))

    def is_current(self, name: str, credential: Credential) -> bool:
        """Return whether the credential is still the user's."""
        return self._present.credentials.get((name, credential.mechanism)) == credential


def _decoys(
    credentials: Mapping[tuple[str, int], Credential], decoy_key: bytes
) -> _DecoyCredentials:
    """Return what is needed to answer SCRAM logins of unknown users like those of known ones.

    ``shapes``: iterations and salt lengths of the real credentials, by mechanism. ``decoy_key``:
    secret of the cluster, empty if the operator sends none.
    """
    ordered = sorted(credentials.items(), key=lambda item: item[0])
    shapes: dict[int, list[tuple[int, int]]] = {}
    for (_, mechanism), credential in ordered:
        shapes.setdefault(mechanism, []).append((credential.iterations, len(credential.salt)))
    # An older operator sends no key: derive one from what only brokers know of two users.
    keys = b"".join(credential.server_key for _, credential in (ordered[:1] + ordered[-1:]))
    return _DecoyCredentials(
        secret=decoy_key or hashlib.sha256(b"strangers" + keys).digest(),
        shapes=MappingProxyType({kind: tuple(found) for kind, found in shapes.items()}),
    )
