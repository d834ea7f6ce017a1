"""How far a Delta table is, by the log of its commits.

An export's commit says so in its ``userMetadata``, as JSON: the properties of
:class:`~tidemark_pipeline.export.export_progress.Exported`, and the version of the table that the
job had looked at before it wrote. The newest of them counts, unless the table was rolled back
since: a ``RESTORE`` makes it what it was at a version, and then what was said then counts.

Delta puts rows that nobody has read behind whatever was committed since the write began. Against
another export that is fenced by a transaction's version (:mod:`tidemark_pipeline.export.delta`); of
a rollback that came between the look and the write the log tells, and the rows that were rolled
back are missing for good. That is refused here, by whoever looks next.

A log that is cleaned (``delta.logRetentionDuration``) forgets. So maintenance says again, in its
own commits, how far the table is (``carried``), with the transaction's version that it read: it
counts where that still is the newest and nothing better is there.

Pure.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tidemark_pipeline.export.export_progress import Exported, ExportError

_BASE, _CLAIM, _CARRIED = "tidemark.base", "tidemark.claim", "tidemark.carried"
_RESTORE, _WRITE = "RESTORE", "WRITE"
_DYNAMIC = "isDynamicPartitionOverwrite"
#: What begins a table anew, whatever was there.
_ANEW = ("CREATE", "REPLACE", "CLONE", "CONVERT")


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """As ``DESCRIBE HISTORY`` shows it. ``said``: its ``userMetadata``."""

    version: int
    operation: str
    parameters: Mapping[str, str | None] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    said: str | None = None

    @property
    def is_rollback(self) -> bool:
        """To an older version."""
        return self.operation == _RESTORE

    @property
    def is_anew(self) -> bool:
        """Return whether earlier offsets are invalid, also because all rows were overwritten,
        perhaps with those of an older version."""
        if self.operation == _WRITE:
            is_partial = self.parameters.get("predicate") or self.parameters.get(_DYNAMIC)
            return self.parameters.get("mode") == "Overwrite" and is_partial in (None, "false")
        return self.operation.startswith(_ANEW)

    @property
    def properties(self) -> dict[str, str]:
        """What an export or its maintenance has said; empty where neither has."""
        try:
            found = json.loads(self.said or "")
        except ValueError:
            return {}
        if not isinstance(found, dict):
            return {}
        return {str(name): str(value) for name, value in found.items()}


class Lost(ExportError):
    """The log has forgotten how far the table is."""


@dataclass(frozen=True, slots=True)
class _Said:
    """By a commit of an export, or of maintenance (``carried``), which had looked at ``base``."""

    exported: Exported
    version: int
    base: int
    is_claim: bool


def say(exported: Exported, base: int, *, claim: bool = False) -> str:
    """The ``userMetadata`` of a commit that an export makes having looked at version ``base``;
    ``claim``: it has no rows."""
    more = {_BASE: str(base), **({_CLAIM: "true"} if claim else {})}
    return json.dumps({**exported.to_properties(), **more})


def carry(exported: Exported, base: int, transaction: int) -> str:
    """The ``userMetadata`` of maintenance that has looked at version ``base`` and found both."""
    more = {_BASE: str(base), _CARRIED: str(transaction)}
    return json.dumps({**exported.to_properties(), **more})


def standing(commits: Iterable[DeltaCommit], transaction: Callable[[], int]) -> Exported | None:
    """How far the table is; None where no export has committed since it was made. ``commits``: from
    the newest on, as many as there are. ``transaction``: the version of the export's transaction as
    the table has it, which is seldom asked for. Raises :class:`Lost`, and :class:`ExportError`
    where rows were written over a rollback."""
    reading = _Reading(transaction)
    oldest = 0
    for commit in commits:
        oldest = commit.version
        if reading.ends_at(commit):
            return reading.exported
    if reading.exported is None and oldest > 0:
        raise Lost(
            "the table's log does not go back to its last export (delta.logRetentionDuration), so "
            "nothing says which records it has: export into a new table"
        )
    return reading.exported


class _Reading:
    """Of a log, backwards."""

    def __init__(self, transaction: Callable[[], int]) -> None:
        self._transaction = transaction
        self._before: int | None = None  # what is not older was rolled back
        self._real: _Said | None = None
        self._carried: _Said | None = None

    @property
    def exported(self) -> Exported | None:
        """As far as it was read."""
        found = self._real or self._carried
        return found.exported if found is not None else None

    def ends_at(self, commit: DeltaCommit) -> bool:
        """Whether there is nothing more to read than this one."""
        if self._before is not None and commit.version >= self._before:
            return False
        if self._real is not None and commit.version <= self._real.base:
            return True
        if commit.is_anew or commit.is_rollback:
            self._begin_again(commit)
            return commit.is_anew
        if self._real is None:
            self._take(commit)
        return False

    def _begin_again(self, commit: DeltaCommit) -> None:
        if self._real is not None and not self._real.is_claim:
            raise _written_over(commit, self._real.version)
        self._real = None  # a claim of what is no more
        if commit.is_anew:
            self._carried = None
            return
        if self._carried is not None and commit.version > self._carried.base:
            self._carried = None
        self._before = _restored(commit) + 1

    def _take(self, commit: DeltaCommit) -> None:
        said = commit.properties
        exported = Exported.of_properties(said)
        if exported is None:
            return
        found = _Said(exported, commit.version, int(said.get(_BASE, 0)), _CLAIM in said)
        if _CARRIED not in said:
            self._real = found
            return
        first = self._carried is None and self._before is None
        if first and int(said[_CARRIED]) == self._transaction():
            self._carried = found


def _restored(rollback: DeltaCommit) -> int:
    version = rollback.parameters.get("version")
    if version is None:  # a time, as a clock showed it that nobody knows
        raise ExportError(
            f"the table was rolled back to a time ({rollback.parameters.get('timestamp')}): "
            "RESTORE it TO VERSION AS OF the version that it is to be"
        )
    return int(version)


def _written_over(rollback: DeltaCommit, version: int) -> ExportError:
    return ExportError(
        f"the table was rolled back (its version {rollback.version}, {rollback.operation}) while a "
        f"job wrote to it (version {version}), so that records are missing: stop the job, and "
        f"RESTORE the table TO VERSION AS OF {rollback.version}"
    )
