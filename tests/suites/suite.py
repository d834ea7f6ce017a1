"""A test suite: how to install it, and how to run some of its tests against a cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.suites.outcomes import Report
from tests.suites.targets import SuiteTarget, Wants


class Ready(Protocol):
    """A suite that has all it needs but a cluster."""

    @property
    def tests(self) -> Sequence[str]:
        """All of them, in the order in which they run."""

    def run(self, tests: Sequence[str], target: SuiteTarget, folder: Path, report: Report) -> None:
        """Run some; ``folder`` is empty, and keeps ``output.log`` and what else they leave."""


class Suite(Protocol):
    """One of other people's."""

    @property
    def name(self) -> str:
        """As ``SUITE=`` names it, and its list of what may fail."""

    @property
    def title(self) -> str:
        """Title with the version."""

    @property
    def wants(self) -> Wants:
        """The cluster that it expects."""

    def prepare(self) -> Ready:
        """Get it, and build what it needs. Raises :class:`tests.suites.packages.Missing`."""
