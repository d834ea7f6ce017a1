"""Files that are generated from code and checked in: written again, or compared with
``--check``, as lint does.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Render = Callable[[Path], Mapping[Path, str]]


def command(
    render: Render, remedy: str, arguments: Sequence[str] | None, *, owned: str = ""
) -> int:
    """Run a generator's command line ``[--check] PATH``; return the exit status.

    - ``render``: returns the text of each generated file at PATH, a file or a folder
    - ``remedy``: printed after the path of each file that is out of date
    - ``arguments``: of the command line, None for those of the process
    - ``owned``: pattern of files below PATH; those that match and are not generated are removed

    With ``--check`` nothing is written, and the status is 1 if a file is out of date.
    """
    parser = argparse.ArgumentParser(description="Write what is made from the code.")
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    parser.add_argument("path", type=Path)
    options = parser.parse_args(arguments)
    rendered = render(options.path)
    # Unchanged files are not written, so that their timestamps stay.
    stale = {path: text for path, text in rendered.items() if not _is(path, text)}
    # Files that an earlier version of the generator wrote.
    others = set(options.path.rglob(owned)) - rendered.keys() if owned else set()
    if not options.check:
        for path, text in stale.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for path in others:
            path.unlink()
        return 0
    for path in sorted(stale.keys() | others):
        sys.stderr.write(f"{path} is out of date: {remedy}\n")
    return int(bool(stale or others))


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
