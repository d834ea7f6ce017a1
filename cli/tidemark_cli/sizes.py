"""Sizes of folders on disk."""

import os
from pathlib import Path

from tidemark.message_text import count


def bytes_of(folder: Path) -> int:
    """Return the bytes of the files below a folder; 0 if it does not exist.

    Symbolic links are not followed, and files that disappear meanwhile count as 0.
    """
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def size_text(size: int) -> str:
    """Return such as "12 MB" (powers of 1,000)."""
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= length:
            figure = size / length
            return f"{figure:.1f} {unit}" if figure < 10 else f"{figure:.0f} {unit}"
    return count(size, "byte")
