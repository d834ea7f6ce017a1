"""The latest known object of every watched key, fed by the watches and by the operator's own
writes.

Newest wins by resourceVersion, so an event that lags behind a write of our own never takes a
status back. A deletion counts only for the uid that was deleted: a made-again object stays. And it
counts for good: the answer to a write of our own may come after the news that its object is gone,
and would bring back a user whom everybody has forgotten.

Versions are compared within one history. An API server whose etcd was put back to a backup begins
another: there a list counts that is older than what was known before it was asked for, or in which
an object is older than it was known to be by then (restoring may raise the versions that come
next), and so does one object that is read. Whoever leads is told, for all that it knows may be more
than is stored.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.lru import Lru
from tidemark_operator.kube.kinds import Json, Key, Kind, key_of, resource_version
from tidemark_operator.objects.object_counts import Tally

#: So many deleted objects are remembered: more than writes can be under way.
DELETED_MAX = 10_000
#: What no two objects have in common.
_OWN = frozenset({"uid", "resourceVersion", "name", "topicId", "topicName"})


def shared(value: Any, name: str = "") -> Any:
    """The same JSON, in which equal texts are one: most of an object's memory is names of fields
    and reasons and messages of conditions, of which each answer brings its own copies."""
    if isinstance(value, dict):
        return {sys.intern(key): shared(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [shared(each, name) for each in value]
    return sys.intern(value) if type(value) is str and name not in _OWN else value


class StoreListener(Protocol):
    """Who is told what is news, at once. Whatever is told is in the store already."""

    def changed(self, body: Json) -> None:
        """An object is new, or newer than it was."""

    def gone(self, key: Key) -> None:
        """An object is no longer there."""


@dataclass(slots=True)
class _Doubt:
    """A deletion in doubt. ``body``: the object in the API server, or its last version (``gone``).
    ``successor``: a later object of the same name. ``with_kind``: the kind's definition was being
    deleted."""

    body: Json
    gone: bool
    successor: Json | None = None
    with_kind: bool = False


class ObjectStore:
    """Bounded by the number of objects. Not locked: owned by the main loop. ``listener``: of the
    present term, None between terms. ``put_back`` is called with the sign by which it is seen that
    the API's data was put back, before anything of that is taken in."""

    def __init__(self, put_back: Callable[[str], None] = lambda _: None) -> None:
        self.listener: StoreListener | None = None
        self._put_back = put_back
        self.tally = Tally()
        self._objects: dict[Key, Json] = {}
        self._by_kind: dict[str, set[Key]] = {}
        #: resourceVersion of the deletion, or the last one before it, by uid.
        self._deleted: Lru[str, int] = Lru(DELETED_MAX)
        self._reached: dict[str, int] = {}
        #: Known from a history that is over: whatever is told of them now is newer.
        self._former: set[Key] = set()
        #: Called when a deletion is to be checked (:mod:`tidemark_operator.term.definitions`);
        #: None: every deletion counts at once.
        self.doubted: Callable[[], None] | None = None
        self._doubts: dict[Key, _Doubt] = {}
        self._believed: Lru[str, bool] = Lru(DELETED_MAX)

    # ------------------------------------------------------------ deletions in doubt

    def believe(self, uid: str) -> None:
        """Let the deletion of this object count, because it was requested or checked."""
        self._believed.put(uid, True)
        self._believed.evict()

    def believed(self, body: Json) -> Json:
        """Return the object, without its deletion while that is in doubt."""
        meta = body["metadata"]
        if self.doubted is None or not meta.get("deletionTimestamp"):
            return body
        if meta["uid"] in self._believed:
            return body
        kept = {name: value for name, value in meta.items() if name != "deletionTimestamp"}
        return {**body, "metadata": kept}

    def in_doubt(self) -> set[str]:
        """Return the kinds with deletions to check."""
        return {key.kind for key, doubt in self._doubts.items() if not doubt.with_kind}

    def has_vanished(self, key: Key) -> bool:
        """Return whether the object is deleted and the store keeps it; it is not reconciled."""
        doubt = self._doubts.get(key)
        return doubt is not None and doubt.gone

    def vanish(self, kind: str) -> None:
        """Keep the deleted objects of a kind whose definition is being deleted. Their deletion is
        no decision about them, so they stay unchanged until they are re-created."""
        for key, doubt in self._doubts.items():
            if key.kind == kind:
                doubt.with_kind = True

    def release(self, kind: str) -> list[tuple[Key, bool]]:
        """Let deletions of a kind's objects count, because the kind stays. Return their keys, and
        whether they are gone."""
        found = [
            key for key, doubt in self._doubts.items() if key.kind == kind and not doubt.with_kind
        ]
        released = []
        for key in found:
            doubt = self._doubts.pop(key)
            self.believe(str(doubt.body["metadata"]["uid"]))
            if doubt.gone:
                self._take_away(doubt.body)
            else:
                self._former.add(key)  # of the same version, and news all the same
                self.put(doubt.body)
            if doubt.successor is not None:
                self.put(doubt.successor)
            released.append((key, doubt.gone and doubt.successor is None))
        return released

    def _doubt(self, body: Json, *, gone: bool) -> bool:
        """Record a deletion and return whether it is in doubt."""
        if self.doubted is None or body["metadata"]["uid"] in self._believed:
            return False
        key = key_of(body)
        former = self._doubts.get(key)
        with_kind = former is not None and former.with_kind
        self._doubts[key] = _Doubt(body, gone, with_kind=with_kind)
        if not with_kind:
            self.doubted()
        return True

    def _waits(self, key: Key, body: Json) -> bool:
        """Return whether an object must wait for the check of the deletion of its predecessor."""
        doubt = self._doubts.get(key)
        if doubt is None or doubt.body["metadata"]["uid"] == body["metadata"]["uid"]:
            return False
        if not doubt.with_kind:
            doubt.successor = body
            return True
        # It was re-created or restored after its definition, and continues its predecessor.
        del self._doubts[key]
        self._deleted.put(str(doubt.body["metadata"]["uid"]), 0)
        return False

    # ------------------------------------------------------------ objects

    def get(self, key: Key) -> Json | None:
        """The object as last seen."""
        return self._objects.get(key)

    def put(self, body: Json) -> bool:
        """Take an object in; False when it is not newer than what is known, or was deleted."""
        key = key_of(body)
        if body["metadata"]["uid"] in self._deleted:
            return False
        self._reach(key.kind, body)
        if self._waits(key, body):
            return False
        known = self._objects.get(key)
        if known is not None and not self._is_newer(body, known):
            return False
        if body["metadata"].get("deletionTimestamp") and self._doubt(body, gone=False):
            body = self.believed(body)
        if known is not None and known["metadata"]["uid"] != body["metadata"]["uid"]:
            self._bury(known)  # nobody told that it was deleted
            self._drop(key)
            known = None
        self._former.discard(key)
        body.get("metadata", {}).pop("managedFields", None)
        body = shared(body)
        self.tally.change(known, body)
        self._objects[key] = body
        self._by_kind.setdefault(key.kind, set()).add(key)
        if self.listener is not None:
            self.listener.changed(body)
        return True

    def remove(self, body: Json) -> bool:
        """The object was deleted; False when another of that name is known already."""
        key, uid = key_of(body), body["metadata"]["uid"]
        self._reach(key.kind, body)
        known = self._objects.get(key)
        if known is not None and known["metadata"]["uid"] == uid and self._doubt(body, gone=True):
            return False
        return self._take_away(body)

    def _take_away(self, body: Json) -> bool:
        key, uid = key_of(body), body["metadata"]["uid"]
        self._bury(body)
        known = self._objects.get(key)
        if known is None or known["metadata"]["uid"] != uid:
            return False
        self._drop(key)
        return True

    def _is_newer(self, body: Json, known: Json) -> bool:
        return key_of(body) in self._former or resource_version(body) > resource_version(known)

    def _reach(self, kind: str, body: Json) -> None:
        self._reached[kind] = max(self._reached.get(kind, 0), resource_version(body))

    def _bury(self, body: Json) -> None:
        if body["metadata"]["uid"] in self._deleted:
            return
        self._deleted.put(body["metadata"]["uid"], resource_version(body))
        self._deleted.evict()

    def _drop(self, key: Key) -> None:
        self._former.discard(key)
        self.tally.change(self._objects.pop(key), None)
        self._by_kind[key.kind].discard(key)
        if self.listener is not None:
            self.listener.gone(key)

    def deleted_at(self, uid: str) -> int:
        """Return the resourceVersion of an object's deletion, 0 if none was seen."""
        return self._deleted.get(uid) or 0

    def reached(self, kind: Kind) -> int:
        """No list of a kind that is asked for now is older than this."""
        return self._reached.get(kind.kind, 0)

    def listing(self, kind: Kind, version: int, reached: int) -> None:
        """A list of a kind begins to come; ``reached``: before it was asked for. One that is older
        all the same is of another history (0: of what version it is it does not say)."""
        if 0 < version < min(reached, self.reached(kind)):  # else that is known by now
            self._begin_anew(kind, version, f"at {version} after {reached}")

    def found(self, kind: Kind, body: Json, version: int) -> bool:
        """An object stands in a list of that version; whether it is news."""
        key = key_of(body)
        known = self._objects.get(key)
        was = 0 if known is None or key in self._former else resource_version(known)
        if resource_version(body) < was <= version:
            self._begin_anew(kind, version, f"{key} has its state before {was}")
        return self.put(body)

    def read(self, kind: Kind, body: Json, known: Json | None) -> bool:
        """The answer to a question for one object, of which ``known`` was known as it was asked;
        whether it is news."""
        key, version = key_of(body), resource_version(body)
        is_told = key in self._former or self._objects.get(key) is not known
        if known is not None and not is_told and 0 < version < resource_version(known):
            was = resource_version(known)
            self._begin_anew(kind, version, f"{key} has its state before {was}")
        return self.put(body)

    def _begin_anew(self, kind: Kind, version: int, sign: str) -> None:
        """What is known of a kind is of a history that is over."""
        self._former |= self.keys(kind)
        self._deleted = Lru(DELETED_MAX)
        self._reached[kind.kind] = version
        self._put_back(f"{kind.plural} {sign}")

    def keep(self, kind: Kind, present: set[Key], version: int) -> list[Key]:
        """No others than these there were of a kind at a resourceVersion: the keys that vanished.
        What is known to be newer stays: it was made while the list was under way."""
        gone = [
            key
            for key in self.keys(kind) - present
            if key in self._former or resource_version(self._objects[key]) <= version
        ]
        told = []
        for key in gone:
            if not self._doubt(self._objects[key], gone=True):
                self._bury(self._objects[key])
                self._drop(key)
                told.append(key)
        return told

    def count(self, kind: Kind) -> int:
        """How many there are."""
        return len(self._by_kind.get(kind.kind, ()))

    def keys(self, kind: Kind) -> set[Key]:
        """The keys of a kind."""
        return set(self._by_kind.get(kind.kind, ()))

    def of_kind(self, kind: Kind) -> Iterator[Json]:
        """The objects of a kind, by key."""
        for key in sorted(self.keys(kind)):
            yield self._objects[key]
