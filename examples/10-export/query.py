"""Query an exported table without Spark, Java or Tidemark: ``query.py FOLDER STATEMENT``.

FOLDER is the table's, such as ``/tmp/lake/db/arrivals``. The statement calls the table by the name
of that folder. PyIceberg or delta-rs reads the files of the last commit, and DuckDB runs the
statement over them.
"""

import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow


def open_table(folder: Path) -> pyarrow.RecordBatchReader:
    """Return the rows of the last commit, in batches that are read one after the other."""
    if (folder / "_delta_log").is_dir():
        from deltalake import DeltaTable, QueryBuilder

        # Upserts mark deleted rows in deletion vectors. The query engine of delta-rs applies them.
        rows = QueryBuilder().register("t", DeltaTable(folder)).execute("SELECT * FROM t")
        return pyarrow.RecordBatchReader.from_stream(rows)
    from pyiceberg.table import StaticTable

    # A hadoop catalog names the last commit in metadata/version-hint.text, which PyIceberg reads.
    return StaticTable.from_metadata(str(folder)).scan().to_arrow_batch_reader()


def query(folder: Path, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and the rows of a statement; the table may appear in it once."""
    with duckdb.connect() as connection:
        # Without it, DuckDB shows timestamps in the time zone of the machine.
        connection.execute("SET TimeZone = 'UTC'")
        connection.register(folder.name, open_table(folder))
        result = connection.execute(statement)
        return [column[0] for column in result.description or ()], result.fetchall()


def main(folder: str, statement: str) -> None:
    columns, rows = query(Path(folder), statement)
    print(*columns, sep="\t")
    for row in rows:
        print(*row, sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
