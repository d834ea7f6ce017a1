"""Planted bugs of exports and their tables, which :mod:`tests.simulation.tables` must find."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tests.simulation import tables
from tidemark_pipeline.export import iceberg_lineage
from tidemark_pipeline.export.export_progress import Exported
from tidemark_pipeline.export.iceberg_lineage import Ancestor, TableProgress
from tidemark_pipeline.read.topic_survey import Survey

_standing = iceberg_lineage.progress_from_ancestors
_positions = Survey.positions


@dataclasses.dataclass(frozen=True, slots=True)
class TableBug:
    """A planted bug. ``plant`` breaks the rule inside its context."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]


def _replaced(target: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch(target, value)


def _tag_says(
    name: str,
    current: Ancestor | None,
    find: Callable[[int], Ancestor | None],
    tagged: Ancestor | None,
) -> TableProgress | None:
    """If an ancestor has expired, trust the last export's tag, whether or not the table was rolled
    back."""
    try:
        return _standing(name, current, find, tagged)
    except iceberg_lineage.LineageLost:
        found = None if tagged is None else Exported.of_properties(tagged.summary)
        return None if found is None or tagged is None else TableProgress(found, tagged.id, False)


def _newest_says(
    name: str,
    current: Ancestor | None,
    find: Callable[[int], Ancestor | None],
    tagged: Ancestor | None,
) -> TableProgress | None:
    """Trust the tag whatever the table's state."""
    found = None if tagged is None else Exported.of_properties(tagged.summary)
    if found is None or tagged is None:
        return _standing(name, current, find, tagged)
    return TableProgress(found, tagged.id, False)


def _later_epochs(survey: Survey, offsets: Any) -> Any:
    """Record later epochs, as if the next leader had had the records."""
    return {
        part: dataclasses.replace(at, leader_epoch=(at.leader_epoch or 0) + 1)
        for part, at in _positions(survey, offsets).items()
    }


TABLE_BUGS = (
    TableBug(
        "a restored topic is taken for the one that was exported",
        _replaced("tidemark_pipeline.read.topic_survey.divergence", lambda *_: None),
    ),
    TableBug(
        "the lineage of the log is not compared before a deletion",
        _replaced("tidemark_pipeline.jobs.export.check_log_lineage", lambda *_: None),
    ),
    TableBug(
        "restores are not recorded",
        _replaced("tidemark_pipeline.read.topic_survey.Survey.restores", lambda *_: ()),
    ),
    TableBug(
        "a restored topic begins one epoch above its heads",
        _replaced(
            "tidemark.tier.maintenance.topic_restore.restored_epoch", lambda highest, _: highest + 1
        ),
    ),
    TableBug(
        "offsets are recorded under an epoch that had not begun",
        _replaced("tidemark_pipeline.read.topic_survey.Survey.positions", _later_epochs),
    ),
    TableBug(
        "a tag says how far a table is whose lineage is lost",
        lambda: mock.patch.object(tables.iceberg_lineage, "progress_from_ancestors", _tag_says),
    ),
    TableBug(
        "a tag says how far a table is",
        lambda: mock.patch.object(tables.iceberg_lineage, "progress_from_ancestors", _newest_says),
    ),
    TableBug(
        "rows that were picked are taken for all rows before them",
        _replaced(
            "tidemark_pipeline.export.iceberg_lineage._may_have_export_rows", lambda *_: False
        ),
    ),
)
