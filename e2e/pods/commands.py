"""Running a program: its output, or an error that has what it said."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LINES_OF_AN_ERROR = 30


class CommandFailed(RuntimeError):
    """A program ended with an error; the text is the command and what it said."""


def run(
    command: Sequence[str | Path],
    *,
    stdin: str = "",
    timeout_s: float = 120,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Its standard output. Raises :class:`CommandFailed`, also when time is up."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=dict(environment) if environment is not None else None,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{' '.join(words)}: not done in {timeout_s:g} s") from None
    except FileNotFoundError:
        raise CommandFailed(f"{words[0]} is not installed") from None
    if done.returncode != 0:
        # Whichever of the two is long says nothing away that the other has to say.
        streams = (done.stdout, done.stderr)
        said = [line for text in streams for line in text.splitlines()[-LINES_OF_AN_ERROR:]]
        raise CommandFailed("\n".join([f"{' '.join(words)}: status {done.returncode}", *said]))
    return done.stdout
