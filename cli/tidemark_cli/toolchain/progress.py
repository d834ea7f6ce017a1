"""Progress of a long build: a live line on a terminal, plain lines elsewhere.

Progress is the number of packages that the compiler names, relative to the number when the program
was pinned. Packages in Go's cache are not named, so such a build ends early.
"""

import sys
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PLAIN_INTERVAL_S = 15.0
# A full bar while the linker still works would look stuck or done.
FRACTION_MAX = 0.97
# Below this fraction an estimate is a guess.
FRACTION_ESTIMATED = 0.05


def remaining_s(elapsed_s: float, fraction: float) -> float | None:
    """Return the seconds left at the pace so far; None while too little is known."""
    if fraction < FRACTION_ESTIMATED:
        return None
    return elapsed_s * (1 - fraction) / fraction


def estimate(elapsed_s: float, fraction: float) -> str:
    """Return the time left as text, or ""."""
    left_s = remaining_s(elapsed_s, fraction)
    if left_s is None:
        return ""
    return f"about {left_s:.0f} s left" if left_s < 90 else f"about {left_s / 60:.0f} min left"


class BuildProgress(Protocol):
    """Display of one build, used as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def note(self, text: str) -> None:
        """Print a permanent line."""

    def step(self, text: str) -> None:
        """Announce the next step."""

    def advance(self, detail: str, fraction: float) -> None:
        """Report the progress of the step; ``fraction`` is from 0 to 1."""


class PlainProgress:
    """Plain lines for logs and pipes: each step, and its progress every fifteen seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._step = ""
        self._started_s = self._step_s = self._printed_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._say(f"done in {time.monotonic() - self._started_s:.0f} s")

    def note(self, text: str) -> None:
        self._say(text)

    def step(self, text: str) -> None:
        self._step, self._step_s = text, time.monotonic()
        self._printed_s = self._step_s
        self._say(text)

    def advance(self, detail: str, fraction: float) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s < PLAIN_INTERVAL_S:
            return
        self._printed_s = now_s
        elapsed_s = now_s - self._step_s
        parts = [f"{self._step}: {elapsed_s:.0f} s", detail, estimate(elapsed_s, fraction)]
        self._say(", ".join(part for part in parts if part))

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveProgress:
    """Live line on a terminal: step, bar, elapsed time, time left."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._task = self._progress.add_task("", total=1.0, left="")
        # Start (monotonic clock) and text of the current step.
        self._step_s = time.monotonic()
        self._step = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._progress.update(self._task, completed=1.0, left="done")
        self._progress.stop()

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def step(self, text: str) -> None:
        self._step, self._step_s = text, time.monotonic()
        self._progress.update(self._task, description=text, completed=0.0, left="")

    def advance(self, detail: str, fraction: float) -> None:
        left = estimate(time.monotonic() - self._step_s, fraction)
        description = f"{self._step} ({detail})" if detail else self._step
        self._progress.update(
            self._task, description=description, completed=min(fraction, FRACTION_MAX), left=left
        )


def default_progress() -> BuildProgress:
    """Return the display that fits the standard error stream."""
    console = Console(stderr=True)
    return LiveProgress(console) if console.is_terminal else PlainProgress(sys.stderr)
