"""Progress of an export: how far a table has a topic, recorded in the table's own commits.

Rows and offsets are committed together, so they cannot differ. A job that was killed resumes from
the table's offsets, without a checkpoint. The epoch and the job identify the last committer. A job
that starts commits an epoch above the one it found. An older job that still runs detects from it
that it was superseded.

Pure. The properties are those of a snapshot's summary in Iceberg. Any table whose commits carry
text can store them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tidemark.log_lineage import ReadPosition, loss_text
from tidemark_pipeline.errors import ExportError

__all__ = [
    "ExportError",
    "Exported",
    "Superseded",
    "WriteMode",
    "check_not_superseded",
    "new_claim",
]

#: Remedy for a table that cannot be continued and is not needed.
REMOVAL = (
    "remove this one with its rows: tidemark spark sql 'DROP TABLE NAME' with the same "
    "--warehouse, for Delta Lake delete its folder"
)
PREFIX = "tidemark."
_TOPIC, _TOPIC_ID, _OFFSETS, _STARTS, _EPOCH, _JOB, _MODE, _DELETES, _LEADER_EPOCHS = (
    PREFIX + name
    for name in (
        *("topic", "topic-id", "offsets", "starts", "epoch", "job", "mode", "deletes"),
        "leader-epochs",
    )
)


class Superseded(ExportError):
    """Raised when another job has taken over the table, or the table was rolled back."""


class WriteMode(StrEnum):
    """Write mode of a table: a row for each record, or for the last record of each key."""

    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class Exported:
    """Progress of a table.

    ``offsets``: first offset of each partition that the table does not have. ``starts``: offset
    from which the table has all records of the partition up to ``offsets``, without a gap; unknown
    for a partition that is missing. ``topic_id``: ID of the tier's topic, empty if only brokers are
    read. ``epoch``: number of jobs so far; 0 before the first. ``deletes``: a job has deleted
    committed records from the topic, or was about to
    (:mod:`tidemark_pipeline.export.record_deletion`). ``leader_epochs``: epoch of each offset
    (:class:`~tidemark.log_lineage.ReadPosition`); older versions recorded none.
    """

    topic: str
    topic_id: str = ""
    offsets: Mapping[int, int] = field(default_factory=dict)
    epoch: int = 0
    job: str = ""
    mode: WriteMode = WriteMode.APPEND
    starts: Mapping[int, int] = field(default_factory=dict)
    deletes: bool = False
    leader_epochs: Mapping[int, int] = field(default_factory=dict)

    def taken_by(self, job: str) -> "Exported":
        """Return the progress as claimed by a job that starts."""
        return replace(self, epoch=self.epoch + 1, job=job)

    def reaching(
        self,
        offsets: Mapping[int, int],
        starts: Mapping[int, int] | None = None,
        leader_epochs: Mapping[int, int] | None = None,
    ) -> "Exported":
        """Return the progress after a commit of records up to ``offsets``.

        All partitions are kept. ``starts``: first exported offset of new partitions; by default
        their new offset. ``leader_epochs``: epochs of ``offsets``. An unchanged offset keeps its
        epoch, because nothing proves that it belongs to a later one. Raises :class:`ExportError` if
        an offset would decrease.
        """
        # Committing lower offsets would export the records in between twice.
        for partition, offset in self.offsets.items():
            if offsets.get(partition, offset) < offset:
                raise ExportError(
                    f"{self.topic}-{partition} is exported to offset {offset}, "
                    f"and a commit would go back to {offsets[partition]}"
                )
        # A known partition keeps the offset from which it has no gap, so that a batch never hides
        # an earlier gap.
        both = {**self.offsets, **offsets}
        given = starts or {}
        since = {
            partition: self.since(partition)
            if partition in self.offsets
            else given.get(partition, offset)
            for partition, offset in both.items()
        }
        # Take epochs of changed offsets from the batch, the others from this progress.
        stays = {part for part, offset in both.items() if self.offsets.get(part) == offset}
        kept = {part: epoch for part, epoch in self.leader_epochs.items() if part in stays}
        new = {part: epoch for part, epoch in (leader_epochs or {}).items() if part not in stays}
        return replace(self, offsets=both, starts=since, leader_epochs={**kept, **new})

    def position(self, partition: int) -> ReadPosition:
        """Return the position at which the table continues with a partition."""
        return ReadPosition(self.offsets.get(partition, 0), self.leader_epochs.get(partition))

    def since(self, partition: int) -> int:
        """Return the offset from which the table surely has all records of the partition."""
        return self.starts.get(partition, self.offsets.get(partition, 0))

    def with_gap(self) -> "Exported":
        """Return the progress after records that the topic still has may have been left out."""
        return replace(self, starts=dict(self.offsets))

    def lag(self, ends: Mapping[int, int]) -> int:
        """Return the number of offsets up to ``ends`` that the table does not have."""
        return sum(max(0, end - self.offsets.get(partition, 0)) for partition, end in ends.items())

    def to_properties(self) -> dict[str, str]:
        """Return the properties that a commit carries."""
        return {
            _TOPIC: self.topic,
            _TOPIC_ID: self.topic_id,
            _OFFSETS: _text(self.offsets),
            _STARTS: _text(self.starts),
            _EPOCH: str(self.epoch),
            _JOB: self.job,
            _MODE: str(self.mode),
            **({_DELETES: "true"} if self.deletes else {}),
            **({_LEADER_EPOCHS: _text(self.leader_epochs)} if self.leader_epochs else {}),
        }

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> "Exported | None":
        """Return the progress in a commit's properties; None if no export made the commit.

        Raises :class:`ExportError` if a property is malformed.
        """
        if _EPOCH not in properties:
            return None
        try:
            return cls(
                topic=properties[_TOPIC],
                topic_id=properties[_TOPIC_ID],
                offsets=_numbers(properties[_OFFSETS]),
                epoch=int(properties[_EPOCH]),
                job=properties[_JOB],
                # Older versions recorded no mode, starts or leader epochs.
                mode=WriteMode(properties.get(_MODE) or WriteMode.APPEND),
                starts=_numbers(properties.get(_STARTS) or "{}"),
                deletes=properties.get(_DELETES) == "true",
                leader_epochs=_numbers(properties.get(_LEADER_EPOCHS) or "{}"),
            )
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise ExportError(
                f"the table's last export recorded a malformed property ({error!r}). "
                "Export into a new table"
            ) from error


def _text(offsets: Mapping[int, int]) -> str:
    named = {str(partition): offset for partition, offset in sorted(offsets.items())}
    return json.dumps(named, separators=(",", ":"))


def _numbers(text: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}


def new_claim(
    progress: Exported | None,
    topic: str,
    topic_id: str,
    job: str,
    mode: WriteMode = WriteMode.APPEND,
    *,
    deletes: bool = False,
) -> Exported:
    """Return the progress that a starting job commits to take over the table.

    ``progress``: progress found in the table, None for a new one. Raises :class:`ExportError` if
    the table belongs to another topic, or its rows were written in another mode.
    """
    if progress is None:
        return Exported(topic, topic_id, mode=mode, deletes=deletes).taken_by(job)
    # Appended and upserted rows in one table would have two meanings.
    if progress.mode is not mode:
        raise ExportError(
            f"the table was written with mode {progress.mode}, not {mode}. Continue with mode "
            f"{progress.mode}, export into another table, or {REMOVAL}"
        )
    if progress.topic != topic:
        raise ExportError(
            f"the table contains the topic {progress.topic}, not {topic}. Name another table, or "
            f"{REMOVAL}"
        )
    # A recreated topic has other records at the same offsets. A job that has failed before its
    # first commit left a table without records, which any topic of the name may fill.
    if progress.offsets:
        check_topic(progress, topic_id)
    taken = progress.taken_by(job)
    # Keep a known topic ID and a recorded deletion, even if this job has neither.
    return replace(
        taken, topic_id=topic_id or progress.topic_id, deletes=deletes or progress.deletes
    )


def check_topic(exported: Exported, topic_id: str) -> None:
    """Raise :class:`ExportError` if the topic was recreated; an unknown ID passes."""
    if exported.topic_id and topic_id and exported.topic_id != topic_id:
        raise ExportError(
            f"the topic {exported.topic} was deleted and re-created since it was exported. "
            f"Export it into a new table, or {REMOVAL}"
        )


def check_lineage(exported: Exported, diverged: Mapping[int, int]) -> None:
    """Raise :class:`ExportError` if the topic has lost records that the table contains.
    ``diverged``: first lost offset by partition."""
    for partition, lost_from in sorted(diverged.items()):
        what = loss_text(f"{exported.topic}-{partition}", exported.position(partition), lost_from)
        raise ExportError(
            f"{what}. The table contains the lost records, and continuing would leave out the new "
            "ones. Nothing is exported or deleted. Export into a new table, or roll this table "
            f"back to a version that ends at or below offset {lost_from} of the partition"
        )


def check_not_superseded(own: Exported, current: Exported | None) -> None:
    """Raise :class:`Superseded` unless the table is as this job left it."""
    if current == own:
        return
    # An older or missing epoch is not a newer job: the table itself went back.
    if current is None or current.epoch < own.epoch or current.job == own.job:
        raise Superseded(
            "the table was rolled back or emptied while the job exported into it. Restart the job"
        )
    raise Superseded(
        f"another job ({current.job}, epoch {current.epoch}) has taken over the table from this "
        f"one ({own.job}, epoch {own.epoch}). Only one job at a time can export into a table"
    )
