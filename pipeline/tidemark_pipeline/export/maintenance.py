"""Maintenance of a table of any format.

Small files are compacted, old table versions expire, and files that no version names are deleted.
All of this may run while a job exports into the table. A compaction is an ordinary commit, and the
job commits its batch after it. Deleted files are older than anything that a job is writing. The
table's progress is never lost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

#: Receives a line for each step.
Say = Callable[[str], None]


def text_of(age: timedelta) -> str:
    """Return an age in hours, such as "168 h"."""
    return f"{age.total_seconds() / 3600:g} h"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """Steps of one maintenance run.

    ``compact``: rewrite small files and files with many deleted rows. ``keep``: age up to which
    table versions are kept, together with the newest ``keep_last`` of Iceberg; None keeps all.
    ``orphans``: age from which files that no version names are deleted; None keeps them.
    """

    compact: bool = True
    keep: timedelta | None = timedelta(days=7)
    keep_last: int = 1
    # Longer than a job needs between writing a file and committing it.
    orphans: timedelta | None = timedelta(days=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """Result of one maintenance run.

    ``compacted``: files that were rewritten to ``into`` files. ``failed``: files left unchanged
    because of concurrent commits. ``expired``: table versions. ``removed``: files deleted with
    them. ``orphans``: deleted files that no version named.
    """

    compacted: int = 0
    into: int = 0
    failed: int = 0
    expired: int = 0
    removed: int = 0
    orphans: int = 0
