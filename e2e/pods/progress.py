"""Progress output of a run: each step as it starts, its duration, and one closing line.

A run builds images and waits for pods, which takes minutes without other output. Times are seconds
since the run started. If two sides run chapters at the same time, each line names its side.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


class Failed(RuntimeError):
    """A step did not come to what it should; the text says what was seen instead."""


@dataclass(slots=True)
class Progress:
    """The steps of one run. ``figures`` are printed at the end, in the order of their arrival.

    ``began_s``: a monotonic time, shared by processes that tell of one run. ``side``: "" where
    there is one only.
    """

    began_s: float = field(default_factory=time.monotonic)
    side: str = ""
    passed: int = 0
    failed: int = 0
    figures: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """One line with the time, and those that follow it; in one piece, as others print, too."""
        label = f"{self.side}  " if self.side else ""
        lines = [f"{label}{line}" for line in text.splitlines()]
        print(f"[{self.taken_s():5.0f} s] " + "\n".join(lines) + "\n", end="", flush=True)

    def taken_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.began_s

    def figure(self, name: str, value: object) -> None:
        """A measure for the closing line."""
        self.figures.append(f"{name} {value}")

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Report a step of preparation, which is not counted."""
        self.say(f"{what} …")
        begun = time.monotonic()
        yield
        self.say(f"{what}: {time.monotonic() - begun:.1f} s")

    @contextlib.contextmanager
    def check(self, what: str) -> Iterator[None]:
        """Something that is judged: counted, whichever way it ends."""
        self.say(f"{what} …")
        begun = time.monotonic()
        try:
            yield
        except BaseException:
            self.failed += 1
            self.say(f"FAILED: {what}")
            raise
        self.passed += 1
        self.say(f"ok: {what} ({time.monotonic() - begun:.1f} s)")

    def closing(self) -> str:
        """The figures, and the line that says how the run ended."""
        taken = f"took {self.taken_s():.0f} s"
        return f"{', '.join([*self.figures, taken])}\n{self.passed} passed, {self.failed} failed"
