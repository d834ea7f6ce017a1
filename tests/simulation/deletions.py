"""Permitted and required effects of a RecordDeletion: invariants 12, 14 and 15.

A user sees the object: its frozen offsets, its progress, its end. The logs must agree with that.
Where nothing else moves a log start, it is one of the frozen offsets. No file with an offset from
there on is deleted, and in the end all files below are.
"""

from typing import Any

from tidemark.tiering import DisablePolicy
from tidemark_broker.replication.partition import Partition
from tidemark_operator.kube.kinds import RECORD_DELETION, Json

Key = tuple[str, int]


class Deletions:
    """The checkers of a run's RecordDeletions; ``checks`` is the :class:`Checks` of the run."""

    def __init__(self, checks: Any) -> None:
        self._checks = checks
        self._objects: dict[str, Json] = {}
        #: Each object's offset, and all of a partition.
        self._frozen: dict[tuple[str, Key], int] = {}
        self._offsets: dict[Key, set[int]] = {}
        #: High watermarks below a deletion: a replica that is behind goes to there first.
        self._reached: dict[Key, set[int]] = {}
        #: Objects that ask for what an earlier one has deleted.
        self.again: set[str] = set()

    def saw(self, body: Json) -> None:
        """An object as a user sees it: what was frozen never changes (14), and a low watermark that
        has reached it is an acknowledgement."""
        if body["kind"] != RECORD_DELETION.kind:
            return
        name = body["metadata"]["name"]
        self._objects[name] = body
        topic, status = body["spec"]["topicRef"]["name"], body.get("status") or {}
        # The controller resolves -1 to the high watermark once, and must not change it.
        for point in status.get("resolved") or []:
            key, offset = (topic, point["partition"]), point["offset"]
            if self._frozen.setdefault((name, key), offset) != offset:
                self._checks.fail("14", f"{name}: {key} was frozen at another offset than {offset}")
            self._offsets.setdefault(key, set()).add(offset)
        # The low watermark has reached the offset, so all live replicas have it.
        for partition, offset, reached in progress(body):
            if reached >= offset:
                self._checks.deleted((topic, partition), offset)

    def acknowledged(self, key: Key) -> list[int]:
        """Offsets below which a deletion was acknowledged, in order."""
        done = self._checks.ledgers[key].deleted_to
        return sorted(offset for offset in self._offsets.get(key, ()) if offset <= done)

    def moved(self, partition: Partition) -> None:
        """Invariants 14 and 15, on every replica, always: the log start is exactly the
        requested one, and its segment still exists (for a tiered log in either tier, which the
        checks of invariant 4 verify).
        """
        key, log = (partition.topic, partition.partition), partition.log
        if not self._only_deletions_move(key):
            return
        start, asked = log.log_start_offset, self._offsets.get(key, set())
        # A replica that is behind raises its start to its high watermark first, and follows later.
        if start == log.high_watermark and start < max(asked, default=0):
            self._reached.setdefault(key, set()).add(start)
        if start and start not in asked | self._reached.get(key, set()):
            self._checks.fail(
                "14",
                f"{partition.tp}: the log starts at {start}, deletions were to {sorted(asked)}",
            )
        # Records from the log start on are in the log, so the first segment begins at or below it.
        first = log.segments.items[0].base_offset
        if first > start and not self._checks.topics[key[0]].tiered:
            self._checks.fail(
                "15", f"{partition.tp}: the log starts at {start}, its first segment at {first}"
            )

    def _only_deletions_move(self, key: Key) -> bool:
        """Not where records expire, an unclean election has cut a log, or a disablement has made
        the log start the local one."""
        return (
            self._checks.topics[key[0]].keeps
            and not self._checks.is_unclean(key)
            and DisablePolicy.DELETE not in self._checks.policies
        )

    def unfinished(self) -> str:
        """Invariant 12, at the end: every object ends, also one that requests what was deleted
        before; empty once all have.
        """
        for name, body in self._objects.items():
            if not (body.get("status") or {}).get("completionTime"):
                return f"{name} has not finished: {body.get('status')}"
        return ""

    def repeated(self) -> None:
        """Invariant 12: to ask once more for what was deleted succeeds; but for an unclean
        election, whose leader may end below it. That it ends at all is :meth:`unfinished`'s."""
        # In a fixed order, so that the first violation is the same in every run.
        for name in sorted(self.again):
            body = self._objects[name]
            status = body.get("status") or {}
            if not status.get("completionTime"):
                continue
            points = status.get("resolved") or []
            topic = body["spec"]["topicRef"]["name"]
            if any(self._checks.is_unclean((topic, point["partition"])) for point in points):
                continue
            found = {
                condition["type"]: condition["status"]
                for condition in status.get("conditions") or []
            }
            if found.get("Succeeded") != "True":
                self._checks.fail("12", f"{name} requests what was already deleted: {status}")

    def left_below(self, key: Key, partition: Partition) -> str:
        """Invariant 15, at the end: no closed segment lies wholly below the log start. After a
        disablement with Retain local files go only once the tier holds nothing visible."""
        mode = partition.local_retention()
        if mode is not None and mode.suspended:
            return ""
        segments = partition.log.segment_infos()
        start = partition.log_start_offset
        if len(segments) > 1 and segments[1].base_offset <= start:
            return f"{key}: the log starts at {start}, segment {segments[0].base_offset} is below"
        return ""


def progress(body: Json) -> list[tuple[int, int, int]]:
    """(partition, frozen offset, low watermark) of a RecordDeletion."""
    status = body.get("status") or {}
    reached = {p["partition"]: p.get("lowWatermark") for p in status.get("partitions") or []}
    return [
        (point["partition"], point["offset"], reached[point["partition"]])
        for point in status.get("resolved") or []
        if reached.get(point["partition"]) is not None
    ]
