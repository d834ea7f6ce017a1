"""The objects from the API server: once all of them, page by page, then what has changed.

A cluster with ten thousand Topics is 30 MB of JSON: to list it every few seconds would be most of
what its API server does. A watch of a few seconds brings changes only. Where the API server does
not remember the moment any more, all is listed anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidemark_cli.local.kube import GONE, Kube, KubeError
from tidemark_cli.top.object_index import Holdings

#: Objects of a batch: whoever takes it has other things to do in between. A slice has many rows.
_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class Batch:
    """Something new of one kind. ``whole``: the names of all there are, at the end of a list.
    ``problem``: why nothing is, "" where it is."""

    kind: str
    objects: list[dict[str, Any]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    whole: frozenset[str] | None = None
    problem: str = ""

    def put_into(self, holdings: Holdings) -> None:
        """What it says is so."""
        if self.objects:
            holdings.put(self.kind, self.objects)
        if self.gone:
            holdings.drop(self.kind, self.gone)
        if self.whole is not None:
            holdings.keep(self.kind, self.whole)


class Reader:
    """Of one kind of objects."""

    def __init__(self, kube: Kube, kind: str) -> None:
        self._kube = kube
        self._kind = kind
        self._version = ""

    def read(self, wait_s: int) -> Iterator[Batch]:
        """All there is, at first; then what changes within ``wait_s``. Never raises: a problem is a
        batch, and the next call tries again."""
        try:
            if self._version:
                yield self._changed(wait_s)
            else:
                yield from self._listed()
        except KubeError as error:
            if error.status == GONE:
                self._version = ""
            else:
                yield Batch(self._kind, problem=f"{self._kind} objects: {error}")

    def _listed(self) -> Iterator[Batch]:
        names: set[str] = set()
        version = ""
        for page in self._kube.pages(self._kind):
            names.update(str(each["metadata"]["name"]) for each in page.objects)
            version = page.resource_version
            for first in range(0, len(page.objects), _AT_ONCE):
                yield Batch(self._kind, page.objects[first : first + _AT_ONCE])
        self._version = version
        yield Batch(self._kind, whole=frozenset(names))

    def _changed(self, wait_s: int) -> Batch:
        changes = self._kube.changes(self._kind, self._version, wait_s)
        self._version = changes.resource_version
        # Only the last of each object counts.
        latest = {str(body["metadata"]["name"]): (how, body) for how, body in changes.events}
        return Batch(
            self._kind,
            [body for how, body in latest.values() if how != "DELETED"],
            [name for name, (how, _) in latest.items() if how == "DELETED"],
        )
