"""Steps, checks and the final table of the demo.

A check is a sentence with a figure and an outcome. A check that the engine cannot show is
*skipped*, never passed. The demo's exit status is 0 only if no check failed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """Line of the final table."""

    step: int
    claim: str
    figure: str
    outcome: Outcome


class DemoReport:
    """Report that prints each step and collects the checks."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._step = 0
        self.checks: list[DemoCheck] = []

    def step(self, title: str) -> None:
        """Start the next step."""
        self._step += 1
        elapsed = time.monotonic() - self._began
        self._console.print(f"\n[bold]{self._step}. {title}[/bold]  [dim]({elapsed:.0f} s)[/dim]")

    def say(self, text: str) -> None:
        """Print a line about the current action."""
        self._console.print(f"   {text}", highlight=False, markup=False, soft_wrap=True)

    def check(self, claim: str, has_passed: bool, figure: str = "") -> None:
        """Record and print a check."""
        self._add(DemoCheck(self._step, claim, figure, "passed" if has_passed else "failed"))

    def skip(self, claim: str, reason: str) -> None:
        """Record and print a check that could not be made, with the reason."""
        self._add(DemoCheck(self._step, claim, reason, "skipped"))

    def wait(
        self, claim: str, holds: Callable[[], bool], figure: Callable[[], str], timeout_s: float
    ) -> bool:
        """Wait until ``holds`` returns True, and record the result as a check with its figure."""
        deadline = time.monotonic() + timeout_s
        while not (has_passed := holds()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.check(claim, has_passed, figure())
        return has_passed

    def failed(self) -> bool:
        """Return whether a check failed, or none was made."""
        return not self.checks or any(check.outcome == "failed" for check in self.checks)

    def table(self) -> Table:
        """Return the table of all checks, by step."""
        elapsed = time.monotonic() - self._began
        counts = {o: sum(c.outcome == o for c in self.checks) for o in _COLOURS}
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        table = Table("step", "check", "figure", "outcome", caption=f"{summary}; {elapsed:.0f} s")
        for check in self.checks:
            colour = _COLOURS[check.outcome]
            table.add_row(
                str(check.step), check.claim, check.figure, f"[{colour}]{check.outcome}[/{colour}]"
            )
        return table

    def _add(self, check: DemoCheck) -> None:
        self.checks.append(check)
        mark = {"passed": "ok     ", "failed": "FAILED ", "skipped": "skipped"}[check.outcome]
        self.say(f"{mark} {check.claim}{': ' + check.figure if check.figure else ''}")


_COLOURS: dict[Outcome, str] = {"passed": "green", "failed": "red", "skipped": "yellow"}
