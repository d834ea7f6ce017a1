"""Broken rules, put in the place of real ones for one run: what the simulation has to find.

Production code has no switch for this. Each entry of :data:`BUGS` names one rule that is broken, the
profile of runs in which it shows soonest, and how it is broken.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests.simulation.cluster import Profile

CALM = Profile(users={}, unclean=False, late_broker=False, settle=False)
#: Three replicas that drop out of the ISR and come back all the time, with late answers.
ISR_CHANGES = dataclasses.replace(
    CALM,
    factor=3,
    min_isr=1,
    tiered=False,
    fault_s=0.4,
    trouble_s=40.0,
    lag_ms=700,
    faults={"brokers cut off": 6, "overtaken answers": 2, "slow API server": 2},
)
#: Machines that lose their power, one after the other.
POWER = dataclasses.replace(
    CALM,
    factor=3,
    min_isr=2,
    tiered=False,
    fault_s=1.2,
    trouble_s=60.0,
    faults={"power cut": 4, "kill": 4, "shut down": 1},
)
#: The same under a tiered topic with one copy that must be in sync.
TIERED_POWER = dataclasses.replace(POWER, min_isr=1, tiered=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Bug:
    """``plant`` breaks the rule while it is entered; ``invariants`` are those that may show it."""

    name: str
    profile: Profile
    invariants: frozenset[str]
    plant: Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def as_it_is() -> Iterator[None]:
    """The rule is broken in the code as it stands."""
    yield


def replaced(target: str, value: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """A rule function replaced by another."""
    return lambda: mock.patch(target, value)


BUGS = (
    Bug("the tier's end is remembered by chance", TIERED_POWER, frozenset({"1", "3"}), as_it_is),
    Bug("a late answer settles another proposal", ISR_CHANGES, frozenset({"1"}), as_it_is),
    Bug("the last of an ISR is believed", POWER, frozenset({"1"}), as_it_is),
)
