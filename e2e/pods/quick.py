"""``python -m e2e.pods.quick``: the part of ``make e2e`` that CI runs, where the machine can.

On a node of our own, for that is the provider that was tried. A machine that makes no pods says so
in one line and is no failure; whatever goes wrong once pods run is one. So is a run without an end:
a machine that is too slow for it is not one to tell anything by.
"""

import signal
import sys
from types import FrameType

from e2e.pods.__main__ import main as run_pods
from e2e.pods.unsupported_machine import STATUS as NOT_HERE

CHAPTERS = ("install", "tier")
#: Cold, too: the node's programs and the base of the images are made first.
LIMIT_S = 30 * 60


class OutOfTime(KeyboardInterrupt):
    """The run is out of time. It stops and cleans up as after Ctrl-C."""


def main() -> int:
    """0 also where the machine runs no pods."""
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(LIMIT_S)
    status = run_pods(["node", *CHAPTERS])
    signal.alarm(0)
    return verdict(status)


def verdict(status: int) -> int:
    """The exit status for CI, of a run's own."""
    return 0 if status == NOT_HERE else status


def _out_of_time(number: int, frame: FrameType | None) -> None:
    print(f"make e2e-quick: not done in {LIMIT_S // 60} minutes", file=sys.stderr, flush=True)
    raise OutOfTime


if __name__ == "__main__":
    sys.exit(main())
