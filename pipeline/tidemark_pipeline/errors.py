"""What every reader of records may raise; apart, for those that run without Spark's libraries."""


class DataLoss(RuntimeError):
    """Rows expired while the read was under way; set failOnDataLoss=false to go on without them."""


class CorruptData(ValueError):
    """Bytes that are no record batches; the message names topic, partition and offsets."""
