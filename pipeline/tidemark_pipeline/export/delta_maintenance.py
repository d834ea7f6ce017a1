"""The upkeep of a Delta Lake table: ``OPTIMIZE`` and ``VACUUM``.

Delta removes old commits of its log by itself, and with them what they said of exports. So both
statements say again, in their own commits, how far the table is
(:func:`~tidemark_pipeline.export.delta_log.carry`).

``VACUUM`` does not tell orphans from files of versions that expire: both go at one age, which Delta
wants to be at least what the table's ``delta.deletedFileRetentionDuration`` says, a week
where it says nothing, so that nobody's unfinished write is among them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from pyspark.sql import SparkSession

from tidemark_pipeline.export.delta_history import History
from tidemark_pipeline.export.delta_log import carry
from tidemark_pipeline.export.maintenance import Maintained, Say, TableMaintenance
from tidemark_pipeline.export.upsert import configured

_SAY = "spark.databricks.delta.commitInfo.userMetadata"
_LOG_VACUUM = "spark.databricks.delta.vacuum.logging.enabled"
_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_LOOK_AT = 5


def maintain(session: SparkSession, name: str, upkeep: TableMaintenance, say: Say) -> Maintained:
    """``name`` as Spark knows it, such as ``delta.`/srv/lake/db/orders```."""
    history = History(session, name)
    compacted = into = removed = 0
    if upkeep.compact:
        say("small files are compacted")
        with carrying(session, history):
            (done,) = session.sql(f"OPTIMIZE {name}").select("metrics.*").collect()
        compacted, into = done["numFilesRemoved"], done["numFilesAdded"]
    if upkeep.keep is not None:
        age = max(upkeep.keep, upkeep.orphans or timedelta())
        say(f"files that no version of the last {age} needs are removed")
        removed = vacuum(session, name, history, "FULL", age / timedelta(hours=1))
    return Maintained(compacted=compacted, into=into, removed=removed)


def vacuum(session: SparkSession, name: str, history: History, kind: str, hours: float) -> int:
    """Files that are removed. ``kind``: ``FULL``, or ``LITE``, those alone of which the table's log
    says that they are no longer its own."""
    settings = {_LOG_VACUUM: "true"}
    if kind == "LITE":
        settings[_CHECK] = "false"
    with carrying(session, history), configured(session, settings):
        session.sql(f"VACUUM {name} {kind} RETAIN {hours} HOURS").collect()
    history.refresh()
    return next(
        int(commit.metrics.get("numDeletedFiles", 0))
        for commit in history.commits(_LOOK_AT)
        if commit.operation == "VACUUM END"
    )


@contextmanager
def carrying(session: SparkSession, history: History) -> Iterator[None]:
    """What is committed says how far the table is; nothing where no export has committed."""
    base = history.refresh()
    exported = history.standing()
    if exported is None:
        yield
        return
    with configured(session, {_SAY: carry(exported, base, history.transaction)}):
        yield
