"""Which tables the loop writes, and where its runs end."""

from enum import Enum

from tidemark_pipeline.export.export_progress import WriteMode
from tidemark_pipeline.export.formats import Format

NO_STEP = "-"
#: Printed by a run before it stops itself.
STANDING_STILL = "suspended"
#: Printed by a run with the number of executors that received a signal.
STRUCK = "executors struck:"


class StruckPart(Enum):
    """Executors of a run, which continues without them.

    ``EXECUTORS`` are killed with SIGKILL. ``NODES`` are drained: executors receive the signal that
    a deleted pod gets first, and end by themselves.
    """

    EXECUTORS = "executors were killed"
    NODES = "nodes were drained"


class StepKind(Enum):
    """A format and a mode, by the name that the command line has."""

    ICEBERG = "iceberg"
    ICEBERG_UPSERT = "iceberg-upsert"
    DELTA = "delta"
    DELTA_UPSERT = "delta-upsert"

    @property
    def format(self) -> Format:
        return Format(self.value.partition("-")[0])

    @property
    def mode(self) -> WriteMode:
        return WriteMode(self.value.partition("-")[2] or WriteMode.APPEND)


class ExportStep(Enum):
    """Step at which a run is interrupted.

    ``ANY_TIME`` is killed from outside; ``OVERTAKEN`` is suspended while another job runs, and
    resumes then.
    """

    NONE = NO_STEP
    PLANNED = "before the write"
    DATA_FILES = "after the data files"
    WRITTEN = "before the commit is published"
    LOGGED = "once the commit is in the log"
    COMMITTED = "before the checkpoint"
    ANY_TIME = "any time"
    OVERTAKEN = "overtaken by another job"


#: Iceberg's rows are written to a branch, and published; Delta's log is a file for each commit.
_OF_ONE = {Format.ICEBERG: ExportStep.WRITTEN, Format.DELTA: ExportStep.LOGGED}


def steps(kind: StepKind) -> list[ExportStep]:
    """At which a run is killed."""
    others = {step for item, step in _OF_ONE.items() if item is not kind.format}
    return [
        step for step in ExportStep if step not in {ExportStep.NONE, ExportStep.OVERTAKEN, *others}
    ]
