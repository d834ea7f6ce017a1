"""How far a table has a topic, as the table's own commit says it.

Rows and offsets that are committed together cannot part: whoever was killed goes on from what the
table has, and no checkpoint is asked. The epoch and the job say who committed last. A job that
starts commits an epoch above the one it found, so that an older job which still runs, or wakes,
sees that it was superseded.

Pure. The properties are those of a snapshot's summary in Iceberg; any table whose commits carry
text can have them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tidemark.log_lineage import ReadPosition, loss_text
from tidemark_pipeline.errors import ExportError

__all__ = ["ExportError", "Exported", "Superseded", "WriteMode", "begin", "check_ours"]

PREFIX = "tidemark."
_TOPIC, _TOPIC_ID, _OFFSETS, _STARTS, _EPOCH, _JOB, _MODE, _DELETES, _LEADER_EPOCHS = (
    PREFIX + name
    for name in (
        *("topic", "topic-id", "offsets", "starts", "epoch", "job", "mode", "deletes"),
        "leader-epochs",
    )
)


class Superseded(ExportError):
    """Another job has taken the table over."""


class WriteMode(StrEnum):
    """How rows get into a table: every record is one, or the last of each key."""

    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class Exported:
    """``offsets``: by partition the first that the table has not. ``starts``: from there on up to
    ``offsets`` it has all that the topic had, without a gap; of a partition that is not named that
    is not known. ``topic_id``: of the tier's topic, empty where only brokers are read. ``epoch``:
    counts the jobs; 0 is none yet. ``deletes``: a job has deleted from the topic what it had
    committed (:mod:`tidemark_pipeline.export.record_deletion`), or was about to. ``leader_epochs``:
    epoch of each offset (:class:`~tidemark.log_lineage.ReadPosition`); older versions recorded
    none."""

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
        """The same, claimed by a job that starts."""
        return replace(self, epoch=self.epoch + 1, job=job)

    def reaching(
        self,
        offsets: Mapping[int, int],
        starts: Mapping[int, int] | None = None,
        leader_epochs: Mapping[int, int] | None = None,
    ) -> "Exported":
        """The same after a commit. No partition goes back, and none is forgotten. ``starts``: of
        partitions that are new, where they were begun; else it is known from now on only.
        ``leader_epochs``: of ``offsets``. An unchanged offset keeps its epoch, because nothing
        proves that it belongs to a later one."""
        for partition, offset in self.offsets.items():
            if offsets.get(partition, offset) < offset:
                raise ExportError(
                    f"{self.topic}-{partition} is exported to offset {offset}, "
                    f"and a commit would go back to {offsets[partition]}"
                )
        both = {**self.offsets, **offsets}
        given = starts or {}
        since = {
            partition: self.since(partition)
            if partition in self.offsets
            else given.get(partition, offset)
            for partition, offset in both.items()
        }
        stays = {part for part, offset in both.items() if self.offsets.get(part) == offset}
        kept = {part: epoch for part, epoch in self.leader_epochs.items() if part in stays}
        new = {part: epoch for part, epoch in (leader_epochs or {}).items() if part not in stays}
        return replace(self, offsets=both, starts=since, leader_epochs={**kept, **new})

    def position(self, partition: int) -> ReadPosition:
        """Return the position at which the table continues with a partition."""
        return ReadPosition(self.offsets.get(partition, 0), self.leader_epochs.get(partition))

    def since(self, partition: int) -> int:
        """From there on the table surely has all up to its offset of the partition."""
        return self.starts.get(partition, self.offsets.get(partition, 0))

    def with_gap(self) -> "Exported":
        """The same, where records may have been left out that the topic still has."""
        return replace(self, starts=dict(self.offsets))

    def lag(self, ends: Mapping[int, int]) -> int:
        """Offsets that the topic has, whose partitions end at ``ends``, and the table has not."""
        return sum(max(0, end - self.offsets.get(partition, 0)) for partition, end in ends.items())

    def to_properties(self) -> dict[str, str]:
        """As a commit carries it."""
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
        """And back; None where a commit is no export's. Raises :class:`ExportError`."""
        if _EPOCH not in properties:
            return None
        try:
            return cls(
                topic=properties[_TOPIC],
                topic_id=properties[_TOPIC_ID],
                offsets=_numbers(properties[_OFFSETS]),
                epoch=int(properties[_EPOCH]),
                job=properties[_JOB],
                mode=WriteMode(properties.get(_MODE) or WriteMode.APPEND),
                starts=_numbers(properties.get(_STARTS) or "{}"),
                deletes=properties.get(_DELETES) == "true",
                leader_epochs=_numbers(properties.get(_LEADER_EPOCHS) or "{}"),
            )
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise ExportError(
                f"the table's last export says what is not understood ({error!r}); "
                "export into a new table"
            ) from error


def _text(offsets: Mapping[int, int]) -> str:
    named = {str(partition): offset for partition, offset in sorted(offsets.items())}
    return json.dumps(named, separators=(",", ":"))


def _numbers(text: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}


def begin(
    found: Exported | None,
    topic: str,
    topic_id: str,
    job: str,
    mode: WriteMode = WriteMode.APPEND,
    *,
    deletes: bool = False,
) -> Exported:
    """What a job claims that finds ``found`` in the table. Raises :class:`ExportError` where the
    table is another topic's, or its rows were written in another mode."""
    if found is None:
        return Exported(topic, topic_id, mode=mode, deletes=deletes).taken_by(job)
    if found.mode is not mode:
        raise ExportError(
            f"the table was exported to with the mode {found.mode}: go on with that, "
            "or export into another table"
        )
    if found.topic != topic:
        raise ExportError(
            f"the table is of the topic {found.topic}, not of {topic}: name another table"
        )
    check_topic(found, topic_id)
    taken = found.taken_by(job)
    return replace(taken, topic_id=topic_id or found.topic_id, deletes=deletes or found.deletes)


def check_topic(exported: Exported, topic_id: str) -> None:
    """The topic that is there now is the one that the table is of, as far as is known, or
    :class:`ExportError` is raised."""
    if exported.topic_id and topic_id and exported.topic_id != topic_id:
        raise ExportError(
            f"the topic {exported.topic} was deleted and made anew since it was exported: "
            "export it into a new table"
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


def check_ours(mine: Exported, found: Exported | None) -> None:
    """The table stands where this job has left it, or :class:`Superseded` is raised."""
    if found == mine:
        return
    if found is None or found.epoch < mine.epoch or found.job == mine.job:
        raise Superseded("the table was rolled back or emptied while it is exported to: begin anew")
    raise Superseded(
        f"another job ({found.job}, epoch {found.epoch}) has taken the table over from this one "
        f"({mine.job}, epoch {mine.epoch}); one job at a time exports into a table"
    )
