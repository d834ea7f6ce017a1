"""Progress of a long build: a live line on a terminal, plain lines elsewhere.

Progress is the number of packages that the compiler names, relative to the number when the program
was pinned. Packages in Go's cache are not named, so such a build ends early.
"""

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tidemark_devcluster.toolchain import ToolchainError

PLAIN_INTERVAL_S = 15.0
# A full bar while the linker still works would look stuck or done.
FRACTION_MAX = 0.97
# Below this progress, and before this time, an estimate is a guess.
FRACTION_ESTIMATED = 0.05
ESTIMATED_AFTER_S = 10.0
# An estimate follows a change of the pace within about this time.
SMOOTHING_S = 20.0


class TimeLeft:
    """Estimate of the time that a step still takes.

    It counts from the first progress: downloads before the first compiled package say nothing about
    the pace of the compiler. It is smoothed, as packages differ much in size.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._left_s = self._at_s = 0.0
        self._is_known = False

    def after(self, now_s: float, fraction: float) -> float | None:
        """Return the seconds left at a progress from 0 to 1; None while too little is known.

        ``now_s``: monotonic time, not before that of the last call.
        """
        if fraction <= 0:
            return None
        if self._first is None:
            self._first = (now_s, fraction)
        # The pace so far: progress and time since the first progress.
        elapsed_s, done = now_s - self._first[0], fraction - self._first[1]
        if elapsed_s < ESTIMATED_AFTER_S or done < FRACTION_ESTIMATED:
            return None
        left_s = elapsed_s * (1 - min(fraction, FRACTION_MAX)) / done
        # The former estimate has become shorter by itself; the new one changes it gradually.
        if self._is_known:
            passed_s = now_s - self._at_s
            expected_s = max(0.0, self._left_s - passed_s)
            left_s = expected_s + (left_s - expected_s) * -math.expm1(-passed_s / SMOOTHING_S)
        self._left_s, self._at_s, self._is_known = left_s, now_s, True
        return left_s

    def text(self, now_s: float, fraction: float) -> str:
        """Return the time left as text, or "" while it is unknown."""
        left_s = self.after(now_s, fraction)
        if left_s is None:
            return ""
        # The number of packages is approximate, and the linker works after the last one.
        if fraction >= FRACTION_MAX:
            return "almost done"
        return f"about {left_s:.0f} s left" if left_s < 90 else f"about {left_s / 60:.0f} min left"


class PlainProgress:
    """Plain lines for logs and pipes: each step, and its progress every fifteen seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._step = ""
        self._started_s = self._step_s = self._printed_s = time.monotonic()
        self._left = TimeLeft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._say(f"done in {time.monotonic() - self._started_s:.0f} s")

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self._say(text)

    def step(self, text: str) -> None:
        """Announce the next step."""
        self._step, self._step_s = text, time.monotonic()
        self._printed_s, self._left = self._step_s, TimeLeft()
        self._say(text)

    def advance(self, detail: str, fraction: float) -> None:
        """Report the progress of the step; ``fraction`` is from 0 to 1."""
        now_s = time.monotonic()
        left = self._left.text(now_s, fraction)
        if now_s - self._printed_s < PLAIN_INTERVAL_S:
            return
        self._printed_s = now_s
        elapsed_s = now_s - self._step_s
        parts = [f"{self._step}: {elapsed_s:.0f} s", detail, left]
        self._say(", ".join(part for part in parts if part))

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveProgress:
    """Live line on a terminal: step, bar, elapsed time, time left.

    Its methods are those of :class:`PlainProgress`.
    """

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
        # Text of the current step, and the estimate of its end.
        self._step = ""
        self._left = TimeLeft()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._progress.update(self._task, completed=1.0, left="done")
        self._progress.stop()

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def step(self, text: str) -> None:
        self._step, self._left = text, TimeLeft()
        self._progress.update(self._task, description=text, completed=0.0, left="")

    def advance(self, detail: str, fraction: float) -> None:
        left = self._left.text(time.monotonic(), fraction)
        description = f"{self._step} ({detail})" if detail else self._step
        self._progress.update(
            self._task, description=description, completed=min(fraction, FRACTION_MAX), left=left
        )


#: Display of one build, used as a context manager.
BuildProgress = PlainProgress | LiveProgress


def default_progress() -> BuildProgress:
    """Return the display that fits the standard error stream."""
    console = Console(stderr=True)
    return LiveProgress(console) if console.is_terminal else PlainProgress(sys.stderr)


def run_reporting(
    command: Sequence[str],
    follow: Callable[[Iterable[str]], Iterable[str]],
    *,
    action: str,
    advice: str,
    environ: Mapping[str, str],
    folder: Path | None = None,
) -> None:
    """Run a program whose output tells its progress.

    ``follow`` reads the output, reports the progress, and returns the lines that explain an error.
    ``action`` and ``advice`` are the message's text about a failure. Raises ToolchainError.
    """
    # Both streams in one pipe: progress and errors come in their order.
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output = follow(process.stdout or ())
        # An interrupted command must not leave a compiler or Maven running.
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        program = Path(command[0]).name
        raise ToolchainError(
            f"{action} failed ({program} exited with status {process.returncode}). {advice} "
            "Output:\n" + "\n".join(output)
        )
