"""Users of a cluster for brokers: all of them, or nothing.

A command with users is complete, so a new controller must not send one before it has read every
``User``: a missing user would be locked out. Until then brokers keep the users of the former
controller.

Limits keep the command within a frame of the control protocol. The oldest users have priority,
whatever the order in which objects are read.
"""

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from tidemark.wire.users import Acl, ClientQuota, ScramCredential, UserState
from tidemark_operator.controller.state.model import Json

USERS_MAX = 10_000
#: ACLs and quotas of all users together; a frame has 64 MiB, and a message 2,000,000 elements.
RULE_BYTES_MAX = 32 * 1024 * 1024
_RULE_BYTES = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A ``User`` object.

    ``username`` is its principal without ``User:``. ``mechanism`` is KIP-554's number for a user
    with a password, else 0. ``password_ref`` is the Secret and key of a password that the operator
    does not generate. ``certificate``: the operator issues one.
    """

    key: str
    uid: str
    username: str
    generation: int
    created_ms: int = 0
    mechanism: int = 0
    password_ref: tuple[str, str] | None = None
    certificate: bool = False
    acls: tuple[Acl, ...] = ()
    quotas: tuple[ClientQuota, ...] = ()
    status: Json = dataclasses.field(default_factory=dict)

    def state(self, scram: Iterable[ScramCredential]) -> UserState:
        """Return the user for brokers, with the credentials of its password."""
        return UserState(name=self.username, scram=tuple(scram), acls=self.acls)


#: Users and their quotas, as sent to brokers.
FittingUsers: TypeAlias = tuple[tuple[UserState, ...], tuple[ClientQuota, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class _UserEntry:
    created_ms: int
    state: UserState
    quotas: tuple[ClientQuota, ...]
    rule_bytes: int
    version: int


class ClusterUsers:
    """Users of one term, by object key; ``version`` increases with every change."""

    def __init__(self) -> None:
        self.version = 1
        self._awaited: set[str] = set()
        self._waiting: set[str] = set()
        self._entries: dict[str, _UserEntry] = {}
        self._rule_bytes = 0
        self._fitting: tuple[int, FittingUsers] = 0, ((), ())
        self._without: tuple[int, frozenset[str]] = 0, frozenset()

    def expect(self, key: str) -> None:
        """Expect a User that existed when the term began: nothing is sent before it was read."""
        self._awaited.add(key)

    @property
    def complete(self) -> bool:
        """Return whether every expected User has been read."""
        return not self._awaited

    def put(self, user: UserInfo, state: UserState) -> bool:
        """Put a User into the state; return whether brokers have to be notified of a change."""
        self._awaited.discard(user.key)
        former = self._entries.get(user.key)
        # An equal User must not raise the version: all brokers would receive all users again.
        if former is not None and (former.state, former.quotas) == (state, user.quotas):
            return False
        self._remove(user.key)
        self.version += 1
        size = _size(state.acls, user.quotas)
        self._entries[user.key] = _UserEntry(
            user.created_ms, state, user.quotas, size, self.version
        )
        self._rule_bytes += size
        return True

    def drop(self, key: str) -> None:
        """Drop a User that is deleted, or that this version cannot read."""
        self._awaited.discard(key)
        if self._remove(key):
            self.version += 1

    def _remove(self, key: str) -> bool:
        entry = self._entries.pop(key, None)
        self._rule_bytes -= entry.rule_bytes if entry else 0
        return entry is not None

    def known(self) -> set[str]:
        """Return the keys of all read or expected Users."""
        return {*self._entries, *self._awaited}

    def get(self, key: str) -> UserState | None:
        """Return a User as sent to brokers."""
        entry = self._entries.get(key)
        return None if entry is None else entry.state

    def changed_at(self, key: str) -> int:
        """Return the version with which a User last changed; 0 for one that is not sent."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.version

    def wait(self, key: str) -> None:
        """Note that a User's status waits for brokers to acknowledge it."""
        self._waiting.add(key)

    def take_waiting(self) -> set[str]:
        """Return and clear the Users whose status waited."""
        waiting, self._waiting = self._waiting, set()
        return waiting

    def is_left_out(self, key: str) -> bool:
        """Return whether the limits leave no room for a User."""
        return key in self._left_out()

    # The version tells whether the cached result is still valid.

    def fitting(self) -> FittingUsers:
        """Return all users that fit, by name; the same object until something changes."""
        if self._fitting[0] != self.version:
            without = self._left_out()
            entries = [entry for key, entry in self._entries.items() if key not in without]
            entries.sort(key=lambda entry: entry.state.name)
            quotas = tuple(quota for entry in entries for quota in entry.quotas)
            self._fitting = self.version, (tuple(entry.state for entry in entries), quotas)
        return self._fitting[1]

    def _left_out(self) -> frozenset[str]:
        if len(self._entries) <= USERS_MAX and self._rule_bytes <= RULE_BYTES_MAX:
            return frozenset()
        if self._without[0] != self.version:
            self._without = self.version, self._find_left_out()
        return self._without[1]

    # Usually nothing is left out, and then no sort is needed.

    def _find_left_out(self) -> frozenset[str]:
        """Return the Users beyond the limits, newest first to be left out."""
        # Older Users have priority: a new one must not lock out one that works.
        by_age = sorted(self._entries, key=lambda key: (self._entries[key].created_ms, key))
        left_out = set(by_age[USERS_MAX:])
        room = RULE_BYTES_MAX
        for key in by_age[:USERS_MAX]:
            size = self._entries[key].rule_bytes
            # A smaller User may still fit after a larger one was left out.
            if size > room:
                left_out.add(key)
            else:
                room -= size
        return frozenset(left_out)


def _size(acls: Iterable[Acl], quotas: Iterable[ClientQuota]) -> int:
    """Return a lower bound of the bytes of ACLs and quotas in a frame."""
    of_acls = sum(_RULE_BYTES + len(acl.resource_name.encode()) + len(acl.host) for acl in acls)
    return of_acls + sum(
        _RULE_BYTES + len((quota.user or "").encode()) + len((quota.client_id or "").encode())
        for quota in quotas
    )
