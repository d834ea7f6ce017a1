"""Where a run of the loop ends."""

from enum import Enum

NO_STEP = "-"
#: Printed by a run before it stops itself.
STANDING_STILL = "standing still"


class Step(Enum):
    """``ANY_TIME`` is killed from outside; ``OVERTAKEN`` stands still while another job runs, and
    goes on then."""

    NONE = NO_STEP
    PLANNED = "before the write"
    DATA_FILES = "after the data files"
    WRITTEN = "before the commit is published"
    COMMITTED = "before the checkpoint"
    ANY_TIME = "any time"
    OVERTAKEN = "overtaken by another job"
