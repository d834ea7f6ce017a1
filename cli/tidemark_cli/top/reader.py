"""Read objects from the API server: first a list, page by page, then changes by watches.

A cluster with ten thousand Topics is 30 MB of JSON, so listing it every few seconds would dominate
the API server's load. A watch of a few seconds returns only changes. If the resource version is too
old for a watch, everything is listed again.
"""

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidemark_cli.inspection.snapshot import read_lease
from tidemark_cli.top.object_index import OTHERS, ObjectIndex
from tidemark_kube.client import GONE, KubeClient, KubeRequestError

#: Objects per batch, so that the screen can draw in between; a slice has many rows.
_AT_ONCE = 10
#: HTTP status for a resource that the API server does not serve.
_NOT_SERVED = 404
LEASE = "Lease"


@dataclass(frozen=True, slots=True)
class ObjectBatch:
    """Update for one kind of objects.

    ``deleted``: names of deleted objects. ``all_names``: names of all objects, at the end of a
    list. ``problem``: why the update is missing, else "".
    """

    kind: str
    objects: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    all_names: frozenset[str] | None = None
    problem: str = ""

    def apply_to(self, object_index: ObjectIndex) -> None:
        """Add and remove the objects of this update in the index."""
        if self.objects:
            object_index.put(self.kind, self.objects)
        if self.deleted:
            object_index.drop(self.kind, self.deleted)
        if self.all_names is not None:
            object_index.keep(self.kind, self.all_names)


@dataclass(frozen=True, slots=True)
class LeaseBatch:
    """The operator's Lease at one time, see :class:`ClusterSnapshot`; or a problem."""

    lease: dict[str, Any] | None
    read_at: dt.datetime
    problem: str = ""
    kind: str = LEASE

    def apply_to(self, object_index: ObjectIndex) -> None:
        """Set the Lease in the index."""
        if not self.problem:
            object_index.put_lease(self.lease, self.read_at)


class LeaseReader:
    """Reader of the operator's Lease.

    It is read again and again: a Lease that is no longer renewed does not change, but its age does.
    """

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._is_first = True

    def read(self, wait_s: int) -> Iterator[LeaseBatch]:
        """Yield the Lease, at once on the first call, else after ``wait_s`` seconds."""
        if not self._is_first:
            time.sleep(wait_s)
        self._is_first = False
        try:
            lease = read_lease(self._kube)
            yield LeaseBatch(lease, self._kube.now())
        except KubeRequestError as error:
            yield LeaseBatch({}, self._kube.now(), problem=_problem("Lease", error))


class ObjectReader:
    """Reader of one kind of objects."""

    def __init__(self, kube: KubeClient, kind: str) -> None:
        self._kube = kube
        self._kind = kind
        self._version = ""

    def read(self, wait_s: int) -> Iterator[ObjectBatch]:
        """Yield all objects on the first call, and on later calls the changes of a watch.

        The watch lasts ``wait_s`` seconds. Never raises: a problem is a batch, and the next call
        retries.
        """
        try:
            if self._version:
                yield self._changed(wait_s)
            else:
                yield from self._listed()
        except KubeRequestError as error:
            # The API server no longer has the resource version: the next call lists everything
            # again.
            if error.status == GONE:
                self._version = ""
            # The definitions of an older version may lack these kinds.
            elif error.status == _NOT_SERVED and self._kind in OTHERS:
                time.sleep(wait_s)
            else:
                yield ObjectBatch(self._kind, problem=_problem(f"{self._kind} objects", error))

    def _listed(self) -> Iterator[ObjectBatch]:
        names: set[str] = set()
        version = ""
        for page in self._kube.pages(self._kind):
            names.update(str(body["metadata"]["name"]) for body in page.objects)
            version = page.resource_version
            for first in range(0, len(page.objects), _AT_ONCE):
                yield ObjectBatch(self._kind, page.objects[first : first + _AT_ONCE])
        self._version = version
        yield ObjectBatch(self._kind, all_names=frozenset(names))

    def _changed(self, wait_s: int) -> ObjectBatch:
        changes = self._kube.changes(self._kind, self._version, wait_s)
        self._version = changes.resource_version
        # Several events of one object collapse into the last one.
        latest = {
            str(body["metadata"]["name"]): (event_type, body) for event_type, body in changes.events
        }
        return ObjectBatch(
            self._kind,
            [body for event_type, body in latest.values() if event_type != "DELETED"],
            [name for name, (event_type, _) in latest.items() if event_type == "DELETED"],
        )


def _problem(subject: str, error: KubeRequestError) -> str:
    """Return the text of a failed read; that of an unreachable server is the same for all kinds."""
    return f"{subject}: {error}" if error.status else str(error)
