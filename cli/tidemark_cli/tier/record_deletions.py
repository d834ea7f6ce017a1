"""Delete exported records through a ``RecordDeletion``, as a user would, or through brokers.

A ``RecordDeletion`` is used if a Kubernetes API is available, otherwise the brokers' DeleteRecords.

The object shows what was deleted and why a deletion waits, with Events, a metric and an alert. The
operator completes it even if a leader dies. Its spec is immutable. An export has only one such
object and replaces it when it is done.
"""

import hashlib
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.ids import id_text
from tidemark.log_lineage import ReadPosition
from tidemark_cli.common import ApiOptions, fail, fail_on, open_cluster
from tidemark_kube.client import KubeClient, KubeRequestError
from tidemark_operator.resources.names import GROUP
from tidemark_pipeline.errors import DependencyUnavailable, ExportError
from tidemark_pipeline.export.record_deletion import BrokerDeletions, Deleter
from tidemark_pipeline.export.table_options import TableOptions
from tidemark_pipeline.read.topic_source import topic_options

KIND = "RecordDeletion"
#: Annotation of an export's object: the table.
ANNOTATION = f"{GROUP}/deleted-after-commit-to"
#: Most partitions that one object may name.
PARTITIONS_MAX = 1024
_TIMEOUT_S = 600
_POLL_S = 0.5
#: Characters of the topic's name that fit into an object name with the suffix.
_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class DeletionOutcome:
    """Outcome of a deletion; ``succeeded`` is None while it is in progress."""

    succeeded: bool | None
    message: str


class RecordDeletions:
    """Deleter of the export to ``table``."""

    def __init__(self, kube: KubeClient, table: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._kube, self._table, self._timeout_s = kube, table, timeout_s

    def delete(self, topic: str, topic_id: str, below: Mapping[int, ReadPosition]) -> None:
        """Apply RecordDeletion objects for these positions.

        Raises DependencyUnavailable if the API server is unavailable, and ExportError.
        """
        try:
            for points in _divided(below):
                self._apply(self._object_of(topic, topic_id), topic_id, points)
        except KubeRequestError as error:
            raise DependencyUnavailable(
                f"records of {topic} are not deleted yet: {error}"
            ) from error

    def _object_of(self, topic: str, topic_id: str) -> str:
        """Return the name of the Topic object."""
        for body in self._kube.objects("Topic"):
            name = str(body["metadata"]["name"])
            if body["spec"].get("topicName", name) != topic:
                continue
            if topic_id and body.get("status", {}).get("topicId") == id_text(uuid.UUID(topic_id)):
                return name
        raise ExportError(
            f"no Topic {topic} has the id that was exported, so no record is deleted: the topic "
            "was recreated, or its Topic is in another namespace"
        )

    def _apply(self, topic: str, topic_id: str, below: Mapping[int, ReadPosition]) -> None:
        """Replace the export's RecordDeletion object and wait until the deletion has succeeded.

        ``below``: offset by partition below which records are deleted. Raises ExportError.
        """
        name = name_of(topic, self._table)
        deadline_s = time.monotonic() + self._timeout_s
        previous = self._kube.get(KIND, name)
        if previous is not None:
            # An unfinished deletion of an earlier run need not be awaited: the new offsets include
            # its offsets.
            if previous["metadata"].get("annotations", {}).get(ANNOTATION) != self._table:
                raise ExportError(
                    f"RecordDeletion {name} does not belong to this export: delete it"
                )
            self._kube.delete(KIND, name)
            self._await_deletion(name, str(previous["metadata"]["uid"]), deadline_s)
        applied = self._kube.apply(
            KIND,
            name,
            {
                "topicRef": {"name": topic},
                # Guards against a new topic of the same name before the object is reconciled.
                "topicId": id_text(uuid.UUID(topic_id)),
                "partitions": _partitions(below),
                "timeout": "10m",
            },
            annotations={ANNOTATION: self._table},
        )
        self._await_success(name, str(applied["metadata"]["uid"]), deadline_s)

    def _await_deletion(self, name: str, uid: str, deadline_s: float) -> None:
        while (current := self._kube.get(KIND, name)) and current["metadata"]["uid"] == uid:
            _pause(deadline_s, f"the previous RecordDeletion {name} still exists")

    def _await_success(self, name: str, uid: str, deadline_s: float) -> None:
        while True:
            current = self._kube.get(KIND, name)
            if current is None or current["metadata"]["uid"] != uid:
                raise DependencyUnavailable(f"RecordDeletion {name} was deleted before it was done")
            outcome = outcome_of(current)
            if outcome.succeeded:
                return
            if outcome.succeeded is not None:
                raise DependencyUnavailable(f"RecordDeletion {name}: {outcome.message}")
            _pause(deadline_s, f"RecordDeletion {name} is not done yet: {outcome.message}")


def name_of(topic: str, table: str) -> str:
    """Return the name of an export's only object; ``topic`` is the Topic's name."""
    digest = hashlib.sha256(f"{topic}\n{table}".encode()).hexdigest()[:10]
    return f"{topic[:_NAME_CHARS].rstrip('-.')}-exported-{digest}"


def outcome_of(body: Mapping[str, Any]) -> DeletionOutcome:
    """Return the outcome according to an object's status."""
    for condition in body.get("status", {}).get("conditions", ()):
        if condition["type"] == "Succeeded":
            text = str(condition.get("message") or condition.get("reason", ""))
            return DeletionOutcome({"True": True, "False": False}.get(condition["status"]), text)
    return DeletionOutcome(None, "the operator has not reconciled it yet")


def _partitions(below: Mapping[int, ReadPosition]) -> list[dict[str, int]]:
    points = []
    for partition, at in sorted(below.items()):
        point = {"partition": partition, "beforeOffset": at.offset}
        # The epoch detects a log that diverged, e.g. if the topic was restored from its tier.
        if at.leader_epoch is not None:
            point["leaderEpoch"] = at.leader_epoch
        points.append(point)
    return points


def _divided(below: Mapping[int, ReadPosition]) -> Iterator[dict[int, ReadPosition]]:
    points = sorted(below.items())
    for first in range(0, len(points), PARTITIONS_MAX):
        yield dict(points[first : first + PARTITIONS_MAX])


def _pause(deadline_s: float, otherwise: str) -> None:
    if time.monotonic() > deadline_s:
        raise DependencyUnavailable(otherwise)
    time.sleep(_POLL_S)


def deleter_of(
    source: Mapping[str, str], table_options: TableOptions, directory: Path | None, api: ApiOptions
) -> Deleter:
    """Return the client that deletes exported records from the topic.

    ``source``: options of the data source. ``directory``: folder of the local cluster, None if the
    export does not read from it. Exits if neither a Kubernetes API nor brokers are given. Raises
    OptionError.
    """
    # Ignoring these options would delete through another API than the user names.
    api.require_kubeconfig()
    # The RecordDeletion objects are annotated with the table that contains the records.
    table = table_options.name_of(table_options.table)
    if api.kubeconfig is not None:
        return RecordDeletions(api.connect(), table)
    if directory is not None:
        with fail_on(KubeRequestError, OSError):
            return RecordDeletions(open_cluster(directory).kube(), table)
    # Without an API, brokers delete the records directly.
    access = topic_options(source).access
    if access is None:
        fail(
            "--delete-after-commit needs an API or brokers: add --kubeconfig FILE or "
            "--bootstrap HOST:PORT"
        )
    return BrokerDeletions(access)
