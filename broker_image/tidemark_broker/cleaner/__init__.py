"""Selection and scheduling of log compaction on a broker (Kafka's ``LogCleaner``)."""

from tidemark_broker.cleaner.log_cleaner import LogCleaner
from tidemark_broker.cleaner.metrics import CleanerCollector

__all__ = ["CleanerCollector", "LogCleaner"]
