"""Columns of the data source, and the selection that a read builds.

They are those of Spark's Kafka source, so that a job can read either, followed by the row's origin.
Spark 4.1 does not tell a Python source which columns a query uses. The option ``columns`` names the
needed ones, and the others are never built.
"""

from dataclasses import dataclass

#: Values of the column ``tier``: the object store, or a broker.
REMOTE, LOCAL = "remote", "local"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """Column; ``type`` is in Spark's DDL."""

    name: str
    type: str
    meaning: str


COLUMNS = (
    SourceColumn("key", "binary", "the record's key"),
    SourceColumn("value", "binary", "the record's value"),
    SourceColumn("topic", "string", "Kafka's name of the topic"),
    SourceColumn("partition", "int", "the partition"),
    SourceColumn("offset", "bigint", "the record's offset"),
    SourceColumn("timestamp", "timestamp", "the record's timestamp; null where it has none"),
    SourceColumn("timestampType", "int", "0 CreateTime, 1 LogAppendTime"),
    SourceColumn("headers", "array<struct<key:string,value:binary>>", "null where there are none"),
    SourceColumn(
        "tier", "string", f"`{REMOTE}`: read from the object store, `{LOCAL}`: from a broker"
    ),
    SourceColumn(
        "tieredEpoch", "int", "the tiered epoch that its segment was copied under; null if local"
    ),
    SourceColumn("leaderEpoch", "int", "the leader epoch that it was written under"),
)
NAMES = tuple(column.name for column in COLUMNS)


def ddl(names: tuple[str, ...]) -> str:
    """Return the Spark schema of the named columns."""
    # In the order of `names`, which is the order of the produced batches.
    types = {column.name: column.type for column in COLUMNS}
    return ", ".join(f"{name} {types[name]}" for name in names)
