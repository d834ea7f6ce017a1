"""How far an Iceberg table is, by the ancestors of its current snapshot.

A table goes back to an older state by ``rollback_to_snapshot``, ``set_current_snapshot`` and the
like. Snapshots that are no ancestors of the current one, tags and table properties survive that, so
none of them says which rows the table has. Ancestors do. One that has expired is looked up in older
files of the table's metadata; where these are gone as well nothing is guessed.

``cherrypick_snapshot`` puts the rows of a snapshot behind another one, without what was before it.
Such a table has no offsets up to which it has all records.

Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidemark_pipeline.export.exported import Exported, ExportError

#: Of a commit that ``cherrypick_snapshot`` made: the snapshot whose rows it has.
_PICKED = "source-snapshot-id"
#: Iceberg's operations by which rows go; ``replace`` rewrites files and keeps all rows.
_REMOVING = frozenset({"overwrite", "delete"})


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A snapshot, as Iceberg describes it."""

    id: int
    parent_id: int | None
    summary: Mapping[str, str] = field(default_factory=dict)
    operation: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """``exported``: how far a table is, by the snapshot ``snapshot_id``. ``is_rewritten``: others
    have removed rows since; ``is_replaced``: all that it had."""

    exported: Exported
    snapshot_id: int
    is_rewritten: bool
    is_replaced: bool = False


class LineageLost(ExportError):
    """An ancestor of the current snapshot is not known any more."""


def standing(
    name: str,
    current: Ancestor | None,
    find: Callable[[int], Ancestor | None],
    tagged: Ancestor | None,
) -> Standing | None:
    """How far the table ``name`` is: what the newest ancestor of ``current``, an export's, says;
    None where no export has written it. ``find``: a snapshot by its id, None where it is not known
    any more. ``tagged``: of the last export, whether or not it is an ancestor.

    Raises :class:`LineageLost`, and :class:`ExportError` where an export's rows were picked."""
    picked: Ancestor | None = None
    is_rewritten = is_replaced = False
    while current is not None:
        source = current.summary.get(_PICKED)
        if source is not None and picked is None and _has_exports_rows(int(source), find):
            picked = current
        exported = None if source is not None else Exported.of_properties(current.summary)
        if exported is not None:
            if picked is not None:
                raise _picked(name, picked, current)
            return Standing(exported, current.id, is_rewritten, is_replaced)
        is_rewritten |= current.operation in _REMOVING
        is_replaced |= current.operation in _REMOVING and _has_only_new_rows(current.summary)
        if current.parent_id is None:
            break
        parent = find(current.parent_id)
        if parent is None:
            raise _lost(name, current, tagged)
        current = parent
    return None


def _has_exports_rows(source_id: int, find: Callable[[int], Ancestor | None]) -> bool:
    """One that is not known any more may have been an export's, and what was picked may have been
    picked before."""
    source = find(source_id)
    while source is not None and _PICKED in source.summary:
        source = find(int(source.summary[_PICKED]))
    return source is None or Exported.of_properties(source.summary) is not None


def _has_only_new_rows(summary: Mapping[str, str]) -> bool:
    return summary.get("added-records", "0") == summary.get("total-records")


def _picked(name: str, picked: Ancestor, last: Ancestor) -> ExportError:
    return ExportError(
        f"snapshot {picked.id} of {name} was made by cherrypick_snapshot and may have rows of an "
        "export, without those of the offsets before them. Nothing is exported or deleted. Roll "
        f"the table back: CALL CATALOG.system.set_current_snapshot('{_in_catalog(name)}', "
        f"{last.id}); the next export continues from there"
    )


def _lost(name: str, youngest: Ancestor, tagged: Ancestor | None) -> LineageLost:
    to_do = "Export into a new table"
    if tagged is not None:
        to_do += (
            ". Or, if nobody has rolled the table back, make the last export's snapshot the "
            f"current one: CALL CATALOG.system.set_current_snapshot('{_in_catalog(name)}', "
            f"{tagged.id}), which undoes what others have committed since"
        )
    return LineageLost(
        f"snapshot {youngest.parent_id}, an ancestor of what {name} is now, has expired, and "
        "nothing else says whether the table was rolled back since its last export. Nothing is "
        f"exported or deleted. {to_do}"
    )


def _in_catalog(name: str) -> str:
    return name.partition(".")[2]
