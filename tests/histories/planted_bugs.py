"""Brokers with a broken rule, which the faults of this package have to find.

``python -m tests.histories.planted_bugs NAME …`` is ``python -m tidemark_broker …`` with one rule
broken. :func:`planted` starts all brokers of a local cluster that way.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tests.histories.plan import OLD_HEAD
from tidemark_devcluster import processes

#: By name: the replaced function, and the fault that shows it.
BUGS: dict[str, tuple[str, str]] = {
    "an older head is believed": ("tidemark.tier.metadata.head.HeadPosition.is_behind", OLD_HEAD),
}
_PROGRAM = "tidemark_broker"


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Break a rule in every broker that is started meanwhile."""
    ensure = processes.ensure

    def started(layout: Any, node: str, command: Sequence[str], **how: Any) -> Any:
        changed = list(command)
        if _PROGRAM in changed:
            place = changed.index(_PROGRAM)
            # The broker's own command line follows, so the process is otherwise unchanged.
            changed[place : place + 1] = [__name__, name]
        return ensure(layout, node, changed, **how)

    with mock.patch.object(processes, "ensure", started):
        yield


def _broken(*_: object) -> bool:
    return False


def main() -> int:
    """Run a broker with the broken rule that the first argument names."""
    name = sys.argv.pop(1)
    with mock.patch(BUGS[name][0], _broken):
        # Imported after the patch: the broker's modules bind names when they are loaded.
        from tidemark_broker.main import main as broker

        return broker()


if __name__ == "__main__":
    sys.exit(main())
