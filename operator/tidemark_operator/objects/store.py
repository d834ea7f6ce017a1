"""Store of the latest known version of every watched object.

Watches and the operator's own writes feed it. The newest resourceVersion wins, so an event that
lags behind an own write never reverts a status. A deletion counts only for the uid that was
deleted: a recreated object stays. It is also final. The answer to an own write may arrive after the
news of the deletion, and would otherwise restore a user that brokers have already removed.

Versions are compared within one history. An API server whose etcd was restored from a backup starts
another history. It is recognized by a list that is older than what was known before the request, by
an object in a list that is older than it was known to be (a restore may raise the following
versions), or by an older single object. Then a leader is notified, because it may know more than is
stored.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.lru import Lru
from tidemark.reasons import Reason
from tidemark_operator.kube.kinds import RECORD_DELETION, Json, Key, Kind, key_of, resource_version

#: (kind, type, status, reason) of a condition.
ConditionValue = tuple[str, str, str, str]


class ObjectCounts:
    """Counts of one store.

    ``conditions``: number of objects with each condition. ``under_way``: creation times of the
    RecordDeletions that have not ended and are not paused.
    """

    def __init__(self) -> None:
        self.conditions: Counter[ConditionValue] = Counter()
        self.under_way: dict[Key, str] = {}

    def change(self, before: Json | None, now: Json | None) -> None:
        """Count the change of an object from ``before`` to ``now``; None: it does not exist."""
        if before is not None:
            self._count(before, -1)
        if now is not None:
            self._count(now, 1)
        body = now or before
        if body is not None and body["kind"] == RECORD_DELETION.kind:
            self.under_way.pop(key_of(body), None)
            if now is not None and _is_under_way(now):
                self.under_way[key_of(now)] = str(now["metadata"]["creationTimestamp"])

    def _count(self, body: Json, step: int) -> None:
        for value in _values(body):
            self.conditions[value] += step
            # Without this, reasons that no object has any more would stay in memory.
            if not self.conditions[value]:
                del self.conditions[value]


def _conditions(body: Json) -> list[Any]:
    return (body.get("status") or {}).get("conditions") or []


def _values(body: Json) -> Iterator[ConditionValue]:
    for condition in _conditions(body):
        yield (
            body["kind"],
            condition.get("type", ""),
            condition.get("status", ""),
            condition.get("reason", ""),
        )


def _is_under_way(deletion: Json) -> bool:
    conditions = _conditions(deletion)
    found = next((item for item in conditions if item.get("type") == "Succeeded"), None)
    return found is None or (found["status"] == "Unknown" and found["reason"] != Reason.PAUSED)


#: Number of remembered deleted objects: more than writes can be under way.
DELETED_MAX = 10_000
#: Fields whose values no two objects share.
_OWN = frozenset({"uid", "resourceVersion", "name", "topicId", "topicName"})


def shared(value: Any, name: str = "") -> Any:
    """Return the same JSON with equal texts stored once.

    Most of an object's memory is names of fields and conditions' reasons and messages. Every answer
    contains its own copies of them.
    """
    if isinstance(value, dict):
        return {sys.intern(key): shared(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [shared(item, name) for item in value]
    return sys.intern(value) if type(value) is str and name not in _OWN else value


class StoreListener(Protocol):
    """Receiver of news, called after the store has changed."""

    def changed(self, body: Json) -> None:
        """Take in that an object is new or newer."""

    def gone(self, key: Key) -> None:
        """Take in that an object is deleted."""


@dataclass(slots=True)
class _UnconfirmedDeletion:
    """A deletion that the API server reported and that is still to be checked.

    ``body``: the object in the API server, or its last version (``gone``). ``successor``: a later
    object of the same name. ``with_kind``: the kind's definition was being deleted.
    """

    body: Json
    gone: bool
    successor: Json | None = None
    with_kind: bool = False


class ObjectCache:
    """Latest objects by key, bounded by their number. Not locked: owned by the main loop.

    ``listener`` is that of the present term, None between terms. ``on_restore`` is called with the
    sign of a restore of the API's data, before the store takes in any of it.
    """

    def __init__(self, on_restore: Callable[[str], None] = lambda _: None) -> None:
        """Create an empty store.

        ``on_restore`` is called with a message if the API server was restored to an earlier state.
        """
        #: Receives changes during a term.
        self.listener: StoreListener | None = None
        self._on_restore = on_restore
        self.counts = ObjectCounts()
        #: Latest version of each object, and its keys by kind.
        self._objects: dict[Key, Json] = {}
        self._by_kind: dict[str, set[Key]] = {}
        #: resourceVersion of the deletion, or the last one before it, by uid.
        self._deleted: Lru[str, int] = Lru(DELETED_MAX)
        #: By kind: highest resourceVersion that a list or watch has delivered.
        self._reached: dict[str, int] = {}
        #: Keys from a former history: everything that arrives about them is newer.
        self._former: set[Key] = set()
        #: Called when a deletion is to be checked (:mod:`tidemark_operator.term.object_follower`);
        #: None: every deletion counts at once.
        self.on_unconfirmed: Callable[[], None] | None = None
        #: Deletions to be checked: a deleted CRD deletes all its objects, which must delete no
        #: topic.
        self._unconfirmed: dict[Key, _UnconfirmedDeletion] = {}
        #: Uids whose deletion was checked and counts.
        self._confirmed: Lru[str, bool] = Lru(DELETED_MAX)

    # ------------------------------------------------------------ unconfirmed deletions

    def confirm_deletion(self, uid: str) -> None:
        """Let the deletion of this object count, because it was requested or checked."""
        self._confirmed.put(uid, True)
        self._confirmed.evict()

    def without_unconfirmed_deletion(self, body: Json) -> Json:
        """Return the object, without ``deletionTimestamp`` while its deletion is unconfirmed."""
        meta = body["metadata"]
        if self.on_unconfirmed is None or not meta.get("deletionTimestamp"):
            return body
        if meta["uid"] in self._confirmed:
            return body
        kept = {name: value for name, value in meta.items() if name != "deletionTimestamp"}
        return {**body, "metadata": kept}

    def kinds_to_check(self) -> set[str]:
        """Return the kinds with deletions to check."""
        return {key.kind for key, deletion in self._unconfirmed.items() if not deletion.with_kind}

    def is_deletion_unconfirmed(self, key: Key) -> bool:
        """Return whether the object is deleted and the store keeps it; it is not reconciled."""
        deletion = self._unconfirmed.get(key)
        return deletion is not None and deletion.gone

    def keep_with_kind(self, kind: str) -> None:
        """Keep the deleted objects of a kind whose definition is being deleted.

        Their deletion is no decision about them, so they stay unchanged until they are recreated.
        """
        for key, deletion in self._unconfirmed.items():
            if key.kind == kind:
                deletion.with_kind = True

    def release(self, kind: str) -> list[tuple[Key, bool]]:
        """Let the unconfirmed deletions of a kind's objects count, because its CRD was not deleted.

        Returns the affected keys, and whether each object no longer exists.
        """
        found = [
            key
            for key, deletion in self._unconfirmed.items()
            if key.kind == kind and not deletion.with_kind
        ]
        released = []
        # Handle each deletion as if it had just been reported.
        for key in found:
            deletion = self._unconfirmed.pop(key)
            self.confirm_deletion(str(deletion.body["metadata"]["uid"]))
            if deletion.gone:
                self._remove_confirmed(deletion.body)
            else:
                self._former.add(key)  # the same version is news: it now counts as being deleted
                self.put(deletion.body)
            if deletion.successor is not None:
                self.put(deletion.successor)
            released.append((key, deletion.gone and deletion.successor is None))
        return released

    def _record_unconfirmed(self, body: Json, *, gone: bool) -> bool:
        """Record a deletion unless it is confirmed; return whether it was recorded."""
        if self.on_unconfirmed is None or body["metadata"]["uid"] in self._confirmed:
            return False
        key = key_of(body)
        former = self._unconfirmed.get(key)
        with_kind = former is not None and former.with_kind
        self._unconfirmed[key] = _UnconfirmedDeletion(body, gone, with_kind=with_kind)
        if not with_kind:
            self.on_unconfirmed()
        return True

    def _awaits_check(self, key: Key, body: Json) -> bool:
        """Return whether an object must wait for the check of the deletion of its predecessor."""
        deletion = self._unconfirmed.get(key)
        if deletion is None or deletion.body["metadata"]["uid"] == body["metadata"]["uid"]:
            return False
        if not deletion.with_kind:
            deletion.successor = body
            return True
        # The object was recreated or restored after its definition: it continues.
        del self._unconfirmed[key]
        self._deleted.put(str(deletion.body["metadata"]["uid"]), 0)
        return False

    # ------------------------------------------------------------ objects

    def get(self, key: Key) -> Json | None:
        """Return the object as last seen."""
        return self._objects.get(key)

    def put(self, body: Json) -> bool:
        """Take an object from a list, a watch or a response; return whether it changed the store.

        Not taken are objects that are not newer than the known version, or that were deleted.
        """
        key = key_of(body)
        # A response that arrives after the deletion must not bring the object back.
        if body["metadata"]["uid"] in self._deleted:
            return False
        self._raise_reached(key.kind, body)
        if self._awaits_check(key, body):
            return False
        known = self._objects.get(key)
        if known is not None and not self._is_newer(body, known):
            return False
        # An unconfirmed deletion is hidden from the reconcilers until it is checked.
        if body["metadata"].get("deletionTimestamp") and self._record_unconfirmed(body, gone=False):
            body = self.without_unconfirmed_deletion(body)
        # Another uid: the object was deleted and created again between two deliveries.
        if known is not None and known["metadata"]["uid"] != body["metadata"]["uid"]:
            self._remember_deletion(known)  # its deletion was not reported
            self._drop(key)
            known = None
        self._former.discard(key)
        # Managed fields are most of an object, and only `ownership` reads them, from the API.
        body.get("metadata", {}).pop("managedFields", None)
        body = shared(body)
        self.counts.change(known, body)
        self._objects[key] = body
        self._by_kind.setdefault(key.kind, set()).add(key)
        if self.listener is not None:
            self.listener.changed(body)
        return True

    def remove(self, body: Json) -> bool:
        """Take in a deletion; False if another object of that name is known."""
        key, uid = key_of(body), body["metadata"]["uid"]
        self._raise_reached(key.kind, body)
        known = self._objects.get(key)
        # The store keeps the object until the deletion is checked.
        if (
            known is not None
            and known["metadata"]["uid"] == uid
            and self._record_unconfirmed(body, gone=True)
        ):
            return False
        return self._remove_confirmed(body)

    def _remove_confirmed(self, body: Json) -> bool:
        key, uid = key_of(body), body["metadata"]["uid"]
        self._remember_deletion(body)
        known = self._objects.get(key)
        if known is None or known["metadata"]["uid"] != uid:
            return False
        self._drop(key)
        return True

    def _is_newer(self, body: Json, known: Json) -> bool:
        return key_of(body) in self._former or resource_version(body) > resource_version(known)

    def _raise_reached(self, kind: str, body: Json) -> None:
        self._reached[kind] = max(self._reached.get(kind, 0), resource_version(body))

    def _remember_deletion(self, body: Json) -> None:
        if body["metadata"]["uid"] in self._deleted:
            return
        self._deleted.put(body["metadata"]["uid"], resource_version(body))
        self._deleted.evict()

    def _drop(self, key: Key) -> None:
        self._former.discard(key)
        self.counts.change(self._objects.pop(key), None)
        self._by_kind[key.kind].discard(key)
        if self.listener is not None:
            self.listener.gone(key)

    def deleted_at(self, uid: str) -> int:
        """Return the resourceVersion of an object's deletion, 0 if none was seen."""
        return self._deleted.get(uid) or 0

    def reached(self, kind: Kind) -> int:
        """Return the version below which no list of the kind can be if it is requested now."""
        return self._reached.get(kind.kind, 0)

    def list_started(self, kind: Kind, version: int, reached: int) -> None:
        """Take in the start of a list; ``reached`` is the version known before the request.

        An older list belongs to another history. A version of 0 means that the list names none.
        """
        # The minimum: another list may have revealed the new history meanwhile.
        if 0 < version < min(reached, self.reached(kind)):
            self._restart(kind, version, f"at {version} after {reached}")

    def list_item(self, kind: Kind, body: Json, version: int) -> bool:
        """Take in an object from a list of that version; return whether it is news."""
        key = key_of(body)
        known = self._objects.get(key)
        was = 0 if known is None or key in self._former else resource_version(known)
        # The list is new enough to contain the known version, and contains an older one.
        if resource_version(body) < was <= version:
            self._restart(kind, version, f"{key} has its state before {was}")
        return self.put(body)

    def read(self, kind: Kind, body: Json, known: Json | None) -> bool:
        """Take in the answer to a read; return whether it is news.

        ``known`` is the stored object at the time of the request.
        """
        key, version = key_of(body), resource_version(body)
        # A watch that changed the object meanwhile may be ahead of the answer.
        has_changed = key in self._former or self._objects.get(key) is not known
        if known is not None and not has_changed and 0 < version < resource_version(known):
            was = resource_version(known)
            self._restart(kind, version, f"{key} has its state before {was}")
        return self.put(body)

    def _restart(self, kind: Kind, version: int, sign: str) -> None:
        """Start a new history of a kind: everything known of it is from a former one."""
        self._former |= self.keys(kind)
        # Uids that were deleted may exist again after a restore.
        self._deleted = Lru(DELETED_MAX)
        self._reached[kind.kind] = version
        self._on_restore(f"{kind.plural} {sign}")

    def remove_missing(self, kind: Kind, present: set[Key], version: int) -> list[Key]:
        """Remove the objects that a complete list lacks; return the keys that vanished.

        ``present``: keys in the list. ``version``: resourceVersion of the list. Objects with a
        higher version were created after the list, and stay.
        """
        gone = [
            key
            for key in self.keys(kind) - present
            if key in self._former or resource_version(self._objects[key]) <= version
        ]
        vanished = []
        for key in gone:
            # A deletion that has to be checked first does not count yet.
            if not self._record_unconfirmed(self._objects[key], gone=True):
                self._remember_deletion(self._objects[key])
                self._drop(key)
                vanished.append(key)
        return vanished

    def count(self, kind: Kind) -> int:
        """Return the number of objects of a kind."""
        return len(self._by_kind.get(kind.kind, ()))

    def keys(self, kind: Kind) -> set[Key]:
        """Return the keys of a kind."""
        return set(self._by_kind.get(kind.kind, ()))

    def of_kind(self, kind: Kind) -> Iterator[Json]:
        """Yield the objects of a kind, by key."""
        for key in sorted(self.keys(kind)):
            yield self._objects[key]
