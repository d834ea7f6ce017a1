"""What every reader of records may raise; apart, for those that run without Spark's libraries."""


class CorruptData(ValueError):
    """Bytes that are no record batches; the message names topic, partition and offsets."""
