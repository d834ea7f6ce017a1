"""Atomic writes of files that other programs may read at any moment."""

from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file in one step; a reader sees the old or the new content, never a part."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)
