"""Log compaction: of each key the last record stays (Kafka's ``LogCleaner`` and its parts).

Whoever compacts a log asks :func:`dirtiness_of` what can be compacted of it now, and has it done by
:func:`clean`. The log itself knows nothing of this.
"""

from tidemark_broker.log.compaction.candidate_selection import Dirtiness
from tidemark_broker.log.compaction.cleaner import (
    CleanerSettings,
    CleaningStats,
    clean,
    dirtiness_of,
)
from tidemark_broker.log.compaction.cleaning_pace import CleaningAborted

__all__ = [
    "CleanerSettings",
    "CleaningAborted",
    "CleaningStats",
    "Dirtiness",
    "clean",
    "dirtiness_of",
]
