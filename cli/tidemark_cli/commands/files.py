"""Files that others may read at any moment: written at once or not at all."""

from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of whatever stands there."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)
