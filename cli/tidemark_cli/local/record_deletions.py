"""Records that an export has committed are deleted by a ``RecordDeletion``, as a person would.

So there is an object that says what went and why it waits, Events, a metric and an alert, and the
operator goes on with it through a leader's death. Its spec never changes; so that they do not grow
in number an export has one, and puts the next in its place once it is done.
"""

import hashlib
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.ids import id_text
from tidemark.log_lineage import Position
from tidemark_cli.local.kube import KubeError
from tidemark_operator.resources.names import GROUP
from tidemark_pipeline.errors import ExportError, Unavailable

KIND = "RecordDeletion"
#: Of an object, that it is an export's: the table.
ANNOTATION = f"{GROUP}/deleted-after-commit-to"
#: What a spec of one object may name.
PARTITIONS_MAX = 1024
_TIMEOUT_S = 600
_LOOK_S = 0.5
#: Of the topic's name, so that the whole is one of Kubernetes'.
_NAME_CHARS = 200


class Objects(Protocol):
    """What is asked of :class:`~tidemark_cli.local.kube.Kube`."""

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """All of them."""

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """One, or None."""

    def apply(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Make it, or change it."""

    def delete(self, kind: str, name: str) -> None:
        """Ask for that."""


@dataclass(frozen=True, slots=True)
class Ended:
    """``succeeded`` None: it has not."""

    succeeded: bool | None
    message: str


class RecordDeletions:
    """Of the export into ``table``."""

    def __init__(self, kube: Objects, table: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._kube, self._table, self._timeout_s = kube, table, timeout_s

    def delete(self, topic: str, topic_id: str, below: Mapping[int, Position]) -> None:
        """See :class:`~tidemark_pipeline.export.record_deletion.Deleter`."""
        try:
            for some in _divided(below):
                self._carry_out(self._object_of(topic, topic_id), topic_id, some)
        except KubeError as error:
            raise Unavailable(f"records of {topic} are not deleted yet: {error}") from error

    def _object_of(self, topic: str, topic_id: str) -> str:
        """The Topic's name."""
        for each in self._kube.objects("Topic"):
            name = str(each["metadata"]["name"])
            if each["spec"].get("topicName", name) != topic:
                continue
            if topic_id and each.get("status", {}).get("topicId") == id_text(uuid.UUID(topic_id)):
                return name
        raise ExportError(
            f"no Topic is {topic} with the id that was exported: nothing is deleted. It was made "
            "anew, or it is in another namespace"
        )

    def _carry_out(self, topic: str, topic_id: str, below: Mapping[int, Position]) -> None:
        name = name_of(topic, self._table)
        deadline_s = time.monotonic() + self._timeout_s
        found = self._kube.get(KIND, name)
        if found is not None:
            # What an earlier run has asked for is a part of what is asked for now.
            if found["metadata"].get("annotations", {}).get(ANNOTATION) != self._table:
                raise ExportError(
                    f"there is a RecordDeletion {name} that is not this export's: delete it"
                )
            self._kube.delete(KIND, name)
            self._wait_gone(name, str(found["metadata"]["uid"]), deadline_s)
        made = self._kube.apply(
            KIND,
            name,
            {
                "topicRef": {"name": topic},
                # Another one may come under this name before the object is looked at.
                "topicId": id_text(uuid.UUID(topic_id)),
                "partitions": _partitions(below),
                "timeout": "10m",
            },
            annotations={ANNOTATION: self._table},
        )
        self._wait_done(name, str(made["metadata"]["uid"]), deadline_s)

    def _wait_gone(self, name: str, uid: str, deadline_s: float) -> None:
        while (found := self._kube.get(KIND, name)) and found["metadata"]["uid"] == uid:
            _pause(deadline_s, f"the RecordDeletion {name} of before is still there")

    def _wait_done(self, name: str, uid: str, deadline_s: float) -> None:
        while True:
            found = self._kube.get(KIND, name)
            if found is None or found["metadata"]["uid"] != uid:
                raise Unavailable(f"somebody has deleted the RecordDeletion {name}")
            end = ended(found)
            if end.succeeded:
                return
            if end.succeeded is not None:
                raise Unavailable(f"RecordDeletion {name}: {end.message}")
            _pause(deadline_s, f"RecordDeletion {name} is not done: {end.message}")


def name_of(topic: str, table: str) -> str:
    """Of the one object of an export; ``topic``: the Topic's."""
    digest = hashlib.sha256(f"{topic}\n{table}".encode()).hexdigest()[:10]
    return f"{topic[:_NAME_CHARS].rstrip('-.')}-exported-{digest}"


def ended(body: Mapping[str, Any]) -> Ended:
    """What an object's status says."""
    for each in body.get("status", {}).get("conditions", ()):
        if each["type"] == "Succeeded":
            text = str(each.get("message") or each.get("reason", ""))
            return Ended({"True": True, "False": False}.get(each["status"]), text)
    return Ended(None, "no operator has looked at it")


def _partitions(below: Mapping[int, Position]) -> list[dict[str, int]]:
    found = []
    for partition, at in sorted(below.items()):
        point = {"partition": partition, "beforeOffset": at.offset}
        # The topic may be restored from its tier before the object is reconciled.
        if at.leader_epoch is not None:
            point["leaderEpoch"] = at.leader_epoch
        found.append(point)
    return found


def _divided(below: Mapping[int, Position]) -> Iterator[dict[int, Position]]:
    points = sorted(below.items())
    for first in range(0, len(points), PARTITIONS_MAX):
        yield dict(points[first : first + PARTITIONS_MAX])


def _pause(deadline_s: float, otherwise: str) -> None:
    if time.monotonic() > deadline_s:
        raise Unavailable(otherwise)
    time.sleep(_LOOK_S)
