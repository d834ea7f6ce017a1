"""The columns of the source, and which of them a read builds.

They are those of Spark's own Kafka source, so that a job reads either, and behind them where a row
came from. Spark tells a Python source of no column that a query leaves out (as of 4.1): whoever
needs a few names them in the option ``columns``, and the others are never made.
"""

from dataclasses import dataclass

#: Values of the column ``tier``: the object store, or a broker.
REMOTE, LOCAL = "remote", "local"


@dataclass(frozen=True, slots=True)
class Column:
    """``type`` as Spark's DDL has it."""

    name: str
    type: str
    meaning: str


COLUMNS = (
    Column("key", "binary", "the record's key"),
    Column("value", "binary", "the record's value"),
    Column("topic", "string", "Kafka's name of the topic"),
    Column("partition", "int", "the partition"),
    Column("offset", "bigint", "the record's offset"),
    Column("timestamp", "timestamp", "the record's timestamp; null where it has none"),
    Column("timestampType", "int", "0 CreateTime, 1 LogAppendTime"),
    Column("headers", "array<struct<key:string,value:binary>>", "null where there are none"),
    Column("tier", "string", f"`{REMOTE}`: read from the object store, `{LOCAL}`: from a broker"),
    Column(
        "tieredEpoch", "int", "the tiered epoch that its segment was copied under; null if local"
    ),
    Column("leaderEpoch", "int", "the leader epoch that it was written under"),
)
NAMES = tuple(column.name for column in COLUMNS)


def ddl(names: tuple[str, ...]) -> str:
    """The schema of these columns for Spark."""
    types = {column.name: column.type for column in COLUMNS}
    return ", ".join(f"{name} {types[name]}" for name in names)
