"""Run the commands of a how-to guide literally, and compare what they print with the page.

A page is read by headings. All commands of a guide run in one Bash process, so variables, functions
and background jobs of earlier steps exist in later ones, as in a reader's terminal.
"""

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"(?ms)^( *)```(sh|console)\n(.*?)^ *```")
_HEADING = re.compile(r"(?m)^#+ (.*)$")
_END = "the command has ended with"
#: Columns of kafka-consumer-groups.sh before the member, which has a random id.
_GROUP_COLUMNS = 6
TIMEOUT_S = 300.0


class GuideStep(NamedTuple):
    """Command of a page, and the lines that it prints there; none for a block of commands."""

    command: str
    output: tuple[str, ...]


class UnexpectedOutput(AssertionError):
    """A command printed other lines than the page says."""


def steps(page: Path, heading: str) -> list[GuideStep]:
    """Return the commands below a heading, up to the next heading of any level."""
    text = page.read_text("utf-8")
    # Headings in blocks are comments of shells.
    hidden = _BLOCK.sub(lambda block: re.sub(r"(?m)^", " ", block[0]), text)
    headings = list(_HEADING.finditer(hidden))
    (index,) = (n for n, found in enumerate(headings) if found[1] == heading)
    end = headings[index + 1].start() if index + 1 < len(headings) else len(hidden)
    section = hidden[headings[index].end() : end]
    found: list[GuideStep] = []
    for block in re.finditer(r"(?ms)^( *)```(sh|console)\n(.*?)^ *```", section):
        indent = len(block[1])
        lines = [line[indent:] for line in block[3].splitlines()]
        if block[2] == "sh":
            found.append(GuideStep("\n".join(lines), ()))
            continue
        for line in lines:
            if line.startswith("$ "):
                found.append(GuideStep(line.removeprefix("$ "), ()))
            else:
                found[-1] = GuideStep(found[-1].command, (*found[-1].output, line))
    return found


def shape(line: str) -> str:
    """Return a line without what differs between clusters: numbers, widths, member ids."""
    words = line.split()
    if len(words) > _GROUP_COLUMNS and words[2].isdigit():
        words = words[:_GROUP_COLUMNS]
    return re.sub(r"\d+", "N", " ".join(words))


class GuideShell:
    """A Bash process in a folder; ends with everything that it started."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A group of its own, so that background jobs can be ended.
            start_new_session=True,
        )
        # A thread reads, because a line may never come.
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def close(self) -> None:
        """Kill Bash and all that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def run(self, command: str, *, timeout_s: float = TIMEOUT_S) -> list[str]:
        """Return the lines that a command prints; fails if its status is not 0."""
        lines, status = self._run(command, timeout_s)
        assert status == 0, f"{command}\nended with {status}:\n" + "\n".join(lines)
        return lines

    def follow(self, step: GuideStep, *, timeout_s: float = 0.0) -> list[str]:
        """Run a step and compare the output with the page; return the output.

        Every line of the page has to be printed. ``timeout_s``: repeat the command for this long.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            lines, status = self._run(step.command, TIMEOUT_S)
            # The page shows what matters, so a command may print more.
            printed = {shape(line) for line in lines}
            missing = [line for line in step.output if shape(line) not in printed]
            if status == 0 and not missing:
                return lines
            if time.monotonic() > deadline:
                raise UnexpectedOutput(
                    f"$ {step.command}\nended with {status} and printed\n"
                    + "\n".join(lines)
                    + "\nwithout these lines of the page:\n"
                    + "\n".join(missing)
                )
            time.sleep(1)

    def _run(self, command: str, timeout_s: float) -> tuple[list[str], int]:
        """Return the lines and the exit status of a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\nprintf '\\n{_END} %d\\n' $?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"{command}\nstill runs, and printed:\n" + "\n".join(lines)
                ) from None
            if line.startswith(_END):
                return [line for line in lines if line], int(line.rsplit(maxsplit=1)[1])
            lines.append(line)
