"""Log compaction: the last record of each key stays (Kafka's ``LogCleaner`` and its parts).

A caller gets the compactable part of a log from :func:`dirtiness_of` and compacts it with
:func:`clean`. The log itself does not depend on this package.
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
