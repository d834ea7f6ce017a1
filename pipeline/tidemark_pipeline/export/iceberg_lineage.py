"""Progress of an Iceberg table, from the ancestors of its current snapshot.

``rollback_to_snapshot``, ``set_current_snapshot`` and similar calls take a table back to an older
state. Snapshots that are no ancestors of the current one, tags and table properties survive that,
so they do not say which rows the table has. Ancestors do. An expired ancestor is looked up in older
metadata files of the table. If these are deleted, too, the progress is not known.

``cherrypick_snapshot`` adds the rows of one snapshot after another one, without the rows before it.
No offset exists up to which such a table has all records.

Pure.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidemark_pipeline.export.export_progress import Exported, ExportError

#: Property of a commit of ``cherrypick_snapshot``: the snapshot whose rows it has.
_PICKED = "source-snapshot-id"
_ID = re.compile("[0-9]{1,18}|[0-8][0-9]{18}")
#: Iceberg's operations that remove rows; ``replace`` rewrites files and keeps all rows.
_REMOVING = frozenset({"overwrite", "delete"})


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A snapshot, as Iceberg describes it."""

    id: int
    parent_id: int | None
    summary: Mapping[str, str] = field(default_factory=dict)
    operation: str = ""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """Progress of a table, as of the snapshot ``snapshot_id``.

    ``is_rewritten``: other tools have removed rows since then. ``is_replaced``: they have removed
    all rows.
    """

    exported: Exported
    snapshot_id: int
    is_rewritten: bool
    is_replaced: bool = False


class LineageLost(ExportError):
    """Raised when an ancestor of the current snapshot has expired and is no longer known."""


def progress_from_ancestors(
    name: str,
    current: Ancestor | None,
    find: Callable[[int], Ancestor | None],
    tagged: Ancestor | None,
) -> TableProgress | None:
    """Return the progress that the newest export among the snapshot's ancestors recorded.

    ``name``: of the table. ``current``: its current snapshot. ``find``: returns a snapshot by ID,
    None if it is no longer known. ``tagged``: snapshot of the last export, whether or not it is an
    ancestor; for the error message.

    Returns None if no export has written the table. Raises :class:`LineageLost`, and
    :class:`ExportError` if another tool cherry-picked rows of an export.
    """
    picked: Ancestor | None = None
    is_rewritten = is_replaced = False
    while current is not None:
        # A cherry-picked commit repeats the properties of another snapshot, so its progress does
        # not count.
        source = current.summary.get(_PICKED)
        if source is not None and picked is None and _may_have_export_rows(source, find):
            picked = current
        exported = None if source is not None else Exported.of_properties(current.summary)
        if exported is not None:
            if picked is not None:
                raise _picked_error(name, picked, current)
            return TableProgress(exported, current.id, is_rewritten, is_replaced)
        # Not a commit of an export: note whether it removed rows, and continue with its parent.
        is_rewritten |= current.operation in _REMOVING
        is_replaced |= current.operation in _REMOVING and _has_only_new_rows(current.summary)
        if current.parent_id is None:
            break
        # An unknown parent may have been a commit of an export, so the search cannot end here.
        parent = find(current.parent_id)
        if parent is None:
            raise _lost_error(name, current, tagged)
        current = parent
    return None


def _may_have_export_rows(source_id: str, find: Callable[[int], Ancestor | None]) -> bool:
    """Return whether a cherry-picked snapshot may have rows of an export.

    An unknown snapshot may, and one that was itself cherry-picked is followed to its source.
    ``source_id`` is not trusted, as every writer of the table can set it.
    """
    seen: set[str] = set()
    while source_id not in seen and _ID.fullmatch(source_id):
        # Each snapshot is read once: forged ids could form a cycle.
        seen.add(source_id)
        source = find(int(source_id))
        if source is None:
            return True
        if _PICKED not in source.summary:
            return Exported.of_properties(source.summary) is not None
        source_id = source.summary[_PICKED]
    return True


def _has_only_new_rows(summary: Mapping[str, str]) -> bool:
    return summary.get("added-records", "0") == summary.get("total-records")


def _picked_error(name: str, picked: Ancestor, last: Ancestor) -> ExportError:
    return ExportError(
        f"snapshot {picked.id} of {name} was made by cherrypick_snapshot and may have rows of an "
        "export without the rows of the offsets before them. Nothing is exported or deleted. Roll "
        f"the table back: CALL CATALOG.system.set_current_snapshot('{_in_catalog(name)}', "
        f"{last.id}); the next export continues from there"
    )


def _lost_error(name: str, youngest: Ancestor, tagged: Ancestor | None) -> LineageLost:
    to_do = "Export into a new table"
    if tagged is not None:
        to_do += (
            ". Or, if the table was not rolled back, make the last export's snapshot the current "
            f"one: CALL CATALOG.system.set_current_snapshot('{_in_catalog(name)}', {tagged.id}), "
            "which undoes all later commits"
        )
    return LineageLost(
        f"snapshot {youngest.parent_id}, an ancestor of {name}'s current snapshot, has expired, "
        "and nothing else says whether the table was rolled back since its last export. Nothing is "
        f"exported or deleted. {to_do}"
    )


def _in_catalog(name: str) -> str:
    return name.partition(".")[2]
