"""Log compaction: of each key the last record stays (Kafka's ``LogCleaner`` and its parts)."""
