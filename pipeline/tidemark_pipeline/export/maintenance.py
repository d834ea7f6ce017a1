"""What keeps a table quick to read and no larger than it must be, whatever its format: small files
become larger ones, versions of the table that nobody needs any more go, and files that no version
names.

All of it may run while a job exports into the table: a compaction is a commit like anybody's,
behind which the job writes its batch; what goes is older than what any job is writing. How far the
table is stays known whatever expires.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

#: Told what is being done.
Say = Callable[[str], None]


def text_of(age: timedelta) -> str:
    """As in "older than 168 h"."""
    return f"{age.total_seconds() / 3600:g} h"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """``compact``: small files, and files of which many rows went. ``keep``: versions of the table
    that are younger stay, and the newest ``keep_last`` of Iceberg's; None keeps all. ``orphans``:
    files that no version names go once they are so old; None leaves them."""

    compact: bool = True
    keep: timedelta | None = timedelta(days=7)
    keep_last: int = 1
    orphans: timedelta | None = timedelta(days=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """``compacted`` files became ``into``; ``failed``: that stayed as they are, because others
    changed them meanwhile; ``expired``: versions; ``removed``: files with them; ``orphans``: files
    that no version named."""

    compacted: int = 0
    into: int = 0
    failed: int = 0
    expired: int = 0
    removed: int = 0
    orphans: int = 0
