"""Steps, checks and the closing table of the demo.

A check is a sentence with a figure that either held or did not; a step that could not be tried is
*skipped*, never passed. The demo's exit status is 0 only when every check held.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the closing table."""

    step: int
    what: str
    figure: str
    outcome: Outcome


class Report:
    """Prints as the demo goes and keeps what was checked."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._step = 0
        self.checks: list[Check] = []

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._step += 1
        elapsed = time.monotonic() - self._began
        self._console.print(f"\n[bold]{self._step}. {title}[/bold]  [dim]({elapsed:.0f} s)[/dim]")

    def say(self, text: str) -> None:
        """A line about what happens."""
        self._console.print(f"   {text}", highlight=False, markup=False, soft_wrap=True)

    def check(self, what: str, held: bool, figure: str = "") -> None:
        """Note and print one check."""
        self._add(Check(self._step, what, figure, "passed" if held else "failed"))

    def skip(self, what: str, reason: str) -> None:
        """Note what could not be tried, and why."""
        self._add(Check(self._step, what, reason, "skipped"))

    def wait(
        self, what: str, holds: Callable[[], bool], figure: Callable[[], str], timeout_s: float
    ) -> bool:
        """Wait until ``holds`` is true and note it as a check with its figure."""
        deadline = time.monotonic() + timeout_s
        while not (held := holds()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.check(what, held, figure())
        return held

    def failed(self) -> bool:
        """Whether any check did not hold (or none was made)."""
        return not self.checks or any(check.outcome == "failed" for check in self.checks)

    def table(self) -> Table:
        """All checks, by step."""
        elapsed = time.monotonic() - self._began
        counts = {o: sum(c.outcome == o for c in self.checks) for o in _COLOURS}
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        table = Table("step", "check", "figure", "outcome", caption=f"{summary}; {elapsed:.0f} s")
        for check in self.checks:
            colour = _COLOURS[check.outcome]
            table.add_row(
                str(check.step), check.what, check.figure, f"[{colour}]{check.outcome}[/{colour}]"
            )
        return table

    def _add(self, check: Check) -> None:
        self.checks.append(check)
        mark = {"passed": "ok     ", "failed": "FAILED ", "skipped": "skipped"}[check.outcome]
        self.say(f"{mark} {check.what}{': ' + check.figure if check.figure else ''}")


_COLOURS: dict[Outcome, str] = {"passed": "green", "failed": "red", "skipped": "yellow"}
