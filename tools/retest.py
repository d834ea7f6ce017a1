"""``make retest``: what failed in the last ``make test``, once more, one test after the other.

pytest's own ``--last-failed`` does not know the tests again that ran in a group of pytest-xdist: it
remembers them with the group behind an ``@``.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache") / "v" / "cache" / "lastfailed"
#: More failures than this are not accidental.
MOST = 10


def failed(remembered: str) -> list[str]:
    """The tests in what pytest remembers (JSON, an object by their ids), without their groups."""
    return sorted({_alone(name) for name in json.loads(remembered)})


def _alone(name: str) -> str:
    """A parameter may have an ``@``, too: the group stands behind all."""
    head, bracket, tail = name.rpartition("]")
    return head + bracket + tail.partition("@")[0]


def main() -> int:
    """pytest's exit status; 1 where nothing is known to have failed, or too much."""
    names = failed(FAILED.read_text()) if FAILED.exists() else []
    print(f"{len(names)} tests failed, as far as pytest remembers", flush=True)
    if not 0 < len(names) <= MOST:
        return 1
    status = subprocess.run(
        [sys.executable, "-m", "pytest", "--maxfail", "1", *names], check=False
    ).returncode
    print(verdict(names, status), flush=True)
    return status


def verdict(names: list[str], status: int) -> str:
    """Return the last line, which names every test that passed only in a retry."""
    if status:
        return f"failed again, at least one of: {', '.join(names)}"
    return f"passed only when run again: {', '.join(names)}"


if __name__ == "__main__":
    sys.exit(main())
