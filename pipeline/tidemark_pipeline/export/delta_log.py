"""Progress of a Delta table, from the log of its commits.

An export's commit records in ``userMetadata``, as JSON, the properties of
:class:`~tidemark_pipeline.export.export_progress.Exported` and its base: the table version that the
job had read before it wrote. The newest record counts. After a ``RESTORE`` the newest record of the
restored version counts.

Delta appends rows after any commit made since the write began. A transaction fences this against
other exports (:mod:`tidemark_pipeline.export.delta`). A rollback between the job's check and its
write is visible in the log only. The rolled-back rows are then missing, so the next reader of the
log raises an error.

Delta removes old log entries (``delta.logRetentionDuration``). So maintenance repeats the progress
in its own commits (``tidemark.carried``), with the transaction that it read. A carried record
counts if that transaction is still the newest and no export's own record is found.

Pure.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from tidemark_pipeline.export.export_progress import Exported, ExportError

_BASE, _CLAIM, _CARRIED = "tidemark.base", "tidemark.claim", "tidemark.carried"
_RESTORE, _WRITE = "RESTORE", "WRITE"
_DYNAMIC = "isDynamicPartitionOverwrite"
#: Operations that replace the table, so earlier progress does not count.
_REPLACING = ("CREATE", "REPLACE", "CLONE", "CONVERT")


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """Commit as ``DESCRIBE HISTORY`` shows it. ``user_metadata``: its ``userMetadata``."""

    version: int
    operation: str
    parameters: Mapping[str, str | None] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    user_metadata: str | None = None

    @property
    def replaces_table(self) -> bool:
        """Return whether earlier progress does not count after this commit.

        An overwrite of all rows is included, because the new rows may be those of an older version.
        """
        if self.operation == _WRITE:
            is_partial = self.parameters.get("predicate") or self.parameters.get(_DYNAMIC)
            return self.parameters.get("mode") == "Overwrite" and is_partial in (None, "false")
        return self.operation.startswith(_REPLACING)

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties that an export or its maintenance recorded, if any."""
        try:
            metadata = json.loads(self.user_metadata or "")
        except ValueError:
            return {}
        if not isinstance(metadata, dict):
            return {}
        return {str(name): str(value) for name, value in metadata.items()}


class ProgressLost(ExportError):
    """Raised when the log no longer contains the table's progress."""


@dataclass(frozen=True, slots=True)
class _RecordedProgress:
    """Progress recorded by an export, or carried by maintenance, that had read version ``base``."""

    exported: Exported
    version: int
    base: int
    is_claim: bool


def export_metadata(exported: Exported, base: int, *, claim: bool = False) -> str:
    """Return the ``userMetadata`` of an export's commit after it read version ``base``.

    ``claim``: the commit has no rows.
    """
    own_properties = {_BASE: str(base), **({_CLAIM: "true"} if claim else {})}
    return json.dumps({**exported.to_properties(), **own_properties})


def carried_metadata(exported: Exported, base: int, transaction: int) -> str:
    """Return the ``userMetadata`` of maintenance that read ``base`` and ``transaction``."""
    own_properties = {_BASE: str(base), _CARRIED: str(transaction)}
    return json.dumps({**exported.to_properties(), **own_properties})


def progress_in_log(
    commits: Iterable[DeltaCommit], transaction: Callable[[], int]
) -> Exported | None:
    """Return the table's progress; None if no export has committed since the table was created.

    ``commits``: all commits, newest first. ``transaction``: returns the last transaction number of
    exports; called only if a record repeated by maintenance is found. Raises :class:`ProgressLost`,
    and :class:`ExportError` if rows were written after an unseen rollback.
    """
    reader = _LogReader(transaction)
    oldest = 0
    for commit in commits:
        oldest = commit.version
        if reader.is_decided_after(commit):
            return reader.exported
    # If the oldest commit is not version 0, Delta has removed older ones.
    if reader.exported is None and oldest > 0:
        raise ProgressLost(
            "the table's log does not go back to its last export (delta.logRetentionDuration), so "
            "nothing says which records it has: export into a new table"
        )
    return reader.exported


class _LogReader:
    """State of reading a log from the newest commit to the oldest."""

    def __init__(self, transaction: Callable[[], int]) -> None:
        self._transaction = transaction
        self._rolled_back_from: int | None = None  # commits from this version on were rolled back
        self._exported: _RecordedProgress | None = None
        self._carried: _RecordedProgress | None = None

    @property
    def exported(self) -> Exported | None:
        """Return the progress found so far; an export's own record takes precedence."""
        recorded = self._exported or self._carried
        return recorded.exported if recorded is not None else None

    def is_decided_after(self, commit: DeltaCommit) -> bool:
        """Return whether the progress is decided once this commit is read."""
        # Rolled-back commits do not count.
        if self._rolled_back_from is not None and commit.version >= self._rolled_back_from:
            return False
        # No rollback happened between the export's check and its write.
        if self._exported is not None and commit.version <= self._exported.base:
            return True
        if commit.replaces_table or commit.operation == _RESTORE:
            self._reset_at(commit)
            return commit.replaces_table
        if self._exported is None:
            self._read_progress(commit)
        return False

    def _reset_at(self, commit: DeltaCommit) -> None:
        # The export had not seen this rollback, and rows below its offsets are missing.
        if self._exported is not None and not self._exported.is_claim:
            raise _unseen_rollback(commit, self._exported.version)
        self._exported = None  # a claim of a state that was rolled back
        if commit.replaces_table:
            self._carried = None
            return
        # Maintenance had not seen this rollback, so its progress is outdated.
        if self._carried is not None and commit.version > self._carried.base:
            self._carried = None
        self._rolled_back_from = _restored_version(commit) + 1

    def _read_progress(self, commit: DeltaCommit) -> None:
        """Store the progress that a commit recorded, if an export or its maintenance made it."""
        properties = commit.properties
        exported = Exported.of_properties(properties)
        if exported is None:
            return
        recorded = _RecordedProgress(
            exported, commit.version, int(properties.get(_BASE, 0)), _CLAIM in properties
        )
        if _CARRIED not in properties:
            self._exported = recorded
            return
        # A record repeated by maintenance counts only if it is the newest one and no export has
        # committed since, so that its transaction number is still the last one.
        first = self._carried is None and self._rolled_back_from is None
        if first and int(properties[_CARRIED]) == self._transaction():
            self._carried = recorded


def _restored_version(rollback: DeltaCommit) -> int:
    version = rollback.parameters.get("version")
    if version is None:  # a clock time, which does not identify a version
        raise ExportError(
            f"the table was rolled back to a time ({rollback.parameters.get('timestamp')}): "
            "RESTORE it TO VERSION AS OF the version that it is to be"
        )
    return int(version)


def _unseen_rollback(rollback: DeltaCommit, version: int) -> ExportError:
    return ExportError(
        f"the table was rolled back (its version {rollback.version}, {rollback.operation}) while a "
        f"job wrote to it (version {version}), so that records are missing: stop the job, and "
        f"RESTORE the table TO VERSION AS OF {rollback.version}"
    )


# ------------------------------------------------------------ History

# Log of a Delta table, read through Spark.
#
# Commits come from ``DESCRIBE HISTORY``. No statement returns the table's version or the
# transaction of an application, so these come from Delta's ``DeltaLog`` through py4j.

#: Application ID that all exports share in Delta.
APPLICATION = "tidemark"
#: Commits in the first query, and the factor for each further one.
_FIRST, _MORE = 20, 10


class DeltaHistory:
    """History of the table ``name``, as of the last :meth:`refresh`."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._name = session, name
        (detail,) = session.sql(f"DESCRIBE DETAIL {name}").select("location").collect()
        jvm: Any = session._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        self._log = log.forTable(session._jsparkSession, detail["location"])
        self._snapshot: Any = None
        self.refresh()

    def refresh(self) -> int:
        """Read the table's current state; return its version."""
        # Scala's default arguments are not visible from Python.
        defaults = (getattr(self._log, f"update$default${number}")() for number in (1, 2, 3))
        self._snapshot = self._log.update(*defaults)
        return self.version

    @property
    def version(self) -> int:
        return int(self._snapshot.version())

    @property
    def files(self) -> int:
        """Return the number of data files."""
        return int(self._snapshot.numOfFiles())

    @property
    def transaction(self) -> int:
        """Return the last transaction of all exports; -1 if there is none."""
        transaction = self._snapshot.transactions().get(APPLICATION)
        return int(transaction.get()) if transaction.isDefined() else -1

    def progress(self, look_at: int = _FIRST) -> Exported | None:
        """Return the table's progress (:func:`~tidemark_pipeline.export.delta_log.progress`).

        ``look_at``: number of commits that usually suffices.
        """
        return progress_in_log(self.commits(look_at), lambda: self.transaction)

    def commits(self, count: int) -> Iterator[DeltaCommit]:
        """Yield the table's commits, from the newest to the oldest.

        The first query reads ``count`` commits; further ones read more as needed.
        """
        # Version of the oldest commit that was yielded.
        oldest = self.version + 1
        while oldest:
            rows = self._session.sql(f"DESCRIBE HISTORY {self._name} LIMIT {count}").collect()
            for row in rows:
                # A larger query returns the newer commits again.
                if row["version"] < oldest:
                    oldest = row["version"]
                    yield DeltaCommit(
                        version=oldest,
                        operation=row["operation"],
                        parameters=row["operationParameters"] or {},
                        metrics=row["operationMetrics"] or {},
                        user_metadata=row["userMetadata"],
                    )
            # Fewer rows than the limit: the log is read to its start.
            if len(rows) < count:
                return
            count *= _MORE
