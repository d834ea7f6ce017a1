"""Files that are made from the code and kept in the repository: written anew, or with ``--check``
compared, as lint does."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def command(
    render: Callable[[Path], Mapping[Path, str]], remedy: str, arguments: Sequence[str] | None
) -> int:
    """``[--check] PATH``: ``render`` tells the text of each file at PATH, a file or a folder.
    Exit status 1 where ``--check`` finds a difference; then ``remedy`` says what to run."""
    parser = argparse.ArgumentParser(description="Write what is made from the code.")
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    parser.add_argument("path", type=Path)
    options = parser.parse_args(arguments)
    stale = {path: text for path, text in render(options.path).items() if not _is(path, text)}
    if not options.check:
        for path, text in stale.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return 0
    for path in stale:
        sys.stderr.write(f"{path} is out of date: {remedy}\n")
    return int(bool(stale))


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
