"""Continuous writes and reads while a chapter disturbs the brokers.

The program is :mod:`e2e.pods.load_program`, in the client's pod. It ends with its standard input,
so a run that ends leaves no process behind.
"""

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from e2e.pods.client import BOOTSTRAP
from e2e.pods.kubernetes import Kubernetes
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed

PROGRAM = Path(__file__).with_name("load_program.py")
END_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Outcome:
    """``acknowledged``: records; ``next``: the number after the last of them; ``longest_s``: the
    longest that one waited for its acknowledgement; ``committed``: offsets by partition."""

    acknowledged: int
    next: int
    longest_s: float
    committed: dict[int, int]


def judge(text: str) -> Outcome:
    """Check the program's output.

    Raises :class:`Failed` if a client reported a failure, or if a record is missing or duplicated.
    """
    told = json.loads(text)
    # All violations at once, since a run of minutes should tell everything that it found.
    complaints = []
    if told["failed"]:
        complaints.append(f"{told['failed']} sends failed: {'; '.join(told['failures'])}")
    if told["missing"]:
        complaints.append(f"{told['missing']} acknowledged records were not read")
    if told["wrong"]:
        complaints.append(f"read out of order or twice: {'; '.join(told['wrong'])}")
    if not told["acknowledged"]:
        complaints.append("nothing was written")
    if complaints:
        raise Failed("; ".join(complaints))
    committed = {int(part): offset for part, offset in told["committed"].items()}
    return Outcome(told["acknowledged"], told["next"], told["longest_s"], committed)


@dataclass(slots=True)
class Load:
    """One run of the program; ``group``: under which the reader commits."""

    kubernetes: Kubernetes
    topic: str
    group: str
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def begin(self, first: int) -> None:
        """With records that are numbered from ``first`` on; they flow. Raises Failed."""
        words = ["--namespace", NAMESPACE, "exec", "--stdin", "client", "--", "python3", "-c"]
        words += [PROGRAM.read_text("utf-8"), BOOTSTRAP, self.topic, self.group, str(first)]
        self._process = subprocess.Popen(
            self.kubernetes.command(*words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        # The first line says that records flow. None means that the program has ended.
        if not self._process.stdout.readline():
            self.end()

    def end(self) -> Outcome:
        """Stop the load and return its result.

        Raises :class:`Failed`.
        """
        if self._process is None:
            raise Failed("the load was never begun")
        try:
            # Closing its standard input ends the program.
            said, errors = self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise Failed(f"the load has not ended within {END_TIMEOUT_S} s") from None
        if self._process.returncode != 0:
            raise Failed(f"the load ended with {self._process.returncode}: {errors[-2000:]}")
        return judge(said)
