"""Outcome of one side of a run, and of all sides: one line of figures, one of counts.

A side is a process of its own on a cluster of its own, and leaves its outcome as a file.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.pods import unsupported_machine
from e2e.pods.progress import Progress
from e2e.pods.unsupported_machine import CannotRun, NotHere

FAILED, INTERRUPTED = 1, 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status``: an exit status; ``not_here``: what the machine lacks, where that ended it."""

    status: int
    passed: int = 0
    failed: int = 0
    figures: tuple[str, ...] = ()
    not_here: str = ""

    def write(self, path: Path) -> None:
        """Write the outcome as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path, status: int) -> "Outcome":
        """As :meth:`write` left it; ``status``: of the process, which may have left nothing."""
        try:
            body = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls(INTERRUPTED if status == INTERRUPTED else FAILED, failed=1)
        return cls(**{**body, "figures": tuple(body["figures"])})


def ended(progress: Progress, outcomes: Mapping[str, Outcome]) -> int:
    """The exit status of a run whose sides came to this. Closing lines are printed where something
    was judged.

    Raises :class:`NotHere` where no side could be had, :class:`CannotRun` where some could not.
    """
    for outcome in outcomes.values():
        progress.passed += outcome.passed
        progress.failed += outcome.failed
        progress.figures += outcome.figures
    # A side that the machine refuses is no failure, unless every side is refused.
    missing = {side: item.not_here for side, item in outcomes.items() if item.not_here}
    if len(missing) == len(outcomes):
        raise NotHere("; ".join(dict.fromkeys(missing.values())))
    print(progress.closing(), flush=True)
    statuses = {outcome.status for outcome in outcomes.values()} - {0, unsupported_machine.STATUS}
    if statuses:
        return INTERRUPTED if statuses == {INTERRUPTED} else FAILED
    for side, why in missing.items():
        raise CannotRun(f"side {side} could not run, because the machine refused it: {why}")
    return 0
