"""The users of a cluster, as brokers are told them: all of them, or nothing.

A command with users is the whole truth, so a controller that has just taken over must not send one
before it has looked at every ``User`` that was there: whoever is missing in it is locked out. Until
then brokers keep what a former controller told them.

Limits hold the command within a frame of the control protocol. Who is left out once they are
reached is told by age, not by the order in which objects happened to be looked at.
"""

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from tidemark.wire.users import Acl, ClientQuota, ScramCredential, UserState
from tidemark_operator.controller.model import Json

USERS_MAX = 10_000
#: ACLs and quotas of all users together; a frame has 64 MiB, and a message 2,000,000 elements.
RULE_BYTES_MAX = 32 * 1024 * 1024
_RULE_BYTES = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A ``User`` object. ``username`` is its principal without ``User:``; ``mechanism`` KIP-554's
    number where it proves itself by a password, else 0; ``password_ref`` the Secret and the key
    where somebody else keeps that; ``certificate``: the operator issues one."""

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
        """What brokers are told, with what the user's password makes."""
        return UserState(name=self.username, scram=tuple(scram), acls=self.acls)


#: Users and their quotas.
Told: TypeAlias = tuple[tuple[UserState, ...], tuple[ClientQuota, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
    created_ms: int
    state: UserState
    quotas: tuple[ClientQuota, ...]
    rule_bytes: int
    version: int


class Users:
    """Of one term, by object key. ``version`` grows with every change of what is told."""

    def __init__(self) -> None:
        self.version = 1
        self._awaited: set[str] = set()
        self._waiting: set[str] = set()
        self._held: dict[str, _Held] = {}
        self._rule_bytes = 0
        self._told: tuple[int, Told] = 0, ((), ())
        self._without: tuple[int, frozenset[str]] = 0, frozenset()

    def expect(self, key: str) -> None:
        """A User that was there when the term began: nothing is told before it was looked at."""
        self._awaited.add(key)

    @property
    def complete(self) -> bool:
        """Whether every User that was there has been looked at."""
        return not self._awaited

    def put(self, user: UserInfo, state: UserState) -> bool:
        """It was looked at; whether that is news."""
        self._awaited.discard(user.key)
        former = self._held.get(user.key)
        if former is not None and (former.state, former.quotas) == (state, user.quotas):
            return False
        self._remove(user.key)
        self.version += 1
        size = _size(state.acls, user.quotas)
        self._held[user.key] = _Held(user.created_ms, state, user.quotas, size, self.version)
        self._rule_bytes += size
        return True

    def drop(self, key: str) -> None:
        """It is gone, or cannot be read by this version."""
        self._awaited.discard(key)
        if self._remove(key):
            self.version += 1

    def _remove(self, key: str) -> bool:
        held = self._held.pop(key, None)
        self._rule_bytes -= held.rule_bytes if held else 0
        return held is not None

    def known(self) -> set[str]:
        """Keys of all that are told, or waited for."""
        return {*self._held, *self._awaited}

    def get(self, key: str) -> UserState | None:
        """What brokers are told of a User."""
        held = self._held.get(key)
        return None if held is None else held.state

    def changed_at(self, key: str) -> int:
        """The version with which a User last changed; 0 for one that is not told."""
        held = self._held.get(key)
        return 0 if held is None else held.version

    def wait(self, key: str) -> None:
        """A User's status waits for brokers to acknowledge it."""
        self._waiting.add(key)

    def take_waiting(self) -> set[str]:
        """Those whose status waited; none does any more."""
        waiting, self._waiting = self._waiting, set()
        return waiting

    def is_left_out(self, key: str) -> bool:
        """Whether the limits leave no room for it."""
        return key in self._left_out()

    def told(self) -> Told:
        """All that fit, by name; the same until something changes."""
        if self._told[0] != self.version:
            without = self._left_out()
            held = [held for key, held in self._held.items() if key not in without]
            held.sort(key=lambda each: each.state.name)
            quotas = tuple(quota for each in held for quota in each.quotas)
            self._told = self.version, (tuple(each.state for each in held), quotas)
        return self._told[1]

    def _left_out(self) -> frozenset[str]:
        if len(self._held) <= USERS_MAX and self._rule_bytes <= RULE_BYTES_MAX:
            return frozenset()
        if self._without[0] != self.version:
            self._without = self.version, self._find_left_out()
        return self._without[1]

    def _find_left_out(self) -> frozenset[str]:
        """The oldest stay."""
        by_age = sorted(self._held, key=lambda key: (self._held[key].created_ms, key))
        left_out = set(by_age[USERS_MAX:])
        room = RULE_BYTES_MAX
        for key in by_age[:USERS_MAX]:
            size = self._held[key].rule_bytes
            if size > room:
                left_out.add(key)
            else:
                room -= size
        return frozenset(left_out)


def _size(acls: Iterable[Acl], quotas: Iterable[ClientQuota]) -> int:
    """At least what they take in a frame."""
    of_acls = sum(_RULE_BYTES + len(each.resource_name.encode()) + len(each.host) for each in acls)
    return of_acls + sum(
        _RULE_BYTES + len((each.user or "").encode()) + len((each.client_id or "").encode())
        for each in quotas
    )
