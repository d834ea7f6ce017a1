"""Compiled modules without the debug information that some wheels are published with.

Nothing reads it where a program runs, and of one event loop it is 12 of 13 MB. ``strip`` is no
part of an image with Python, so the sections are taken out here, as ``strip --strip-debug`` does
it: what the dynamic linker loads stays where it is, what lies behind moves up, and names of
functions stay for profilers. The format: System V ABI, "Object Files"; elf(5).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAGIC: Final = b"\x7fELF"
#: 64 bits, little-endian: the machines that images are built for.
_IDENT: Final = _MAGIC + b"\x02\x01"
_HEADER: Final = struct.Struct("<16x HHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<II QQQ QQ Q")
_SECTION: Final = struct.Struct("<II QQQQ II QQ")
_ALLOCATED: Final = 0x2
_WITHOUT_BYTES: Final = 8  # SHT_NOBITS
#: Where the header says where the sections are.
_SECTIONS_AT: Final = 40


@dataclass(slots=True)
class _Section:
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    def packed(self) -> bytes:
        place = self.address, self.offset, self.size
        rest = self.link, self.info, self.alignment, self.entry_size
        return _SECTION.pack(self.name, self.kind, self.flags, *place, *rest)


def files(root: Path) -> Iterator[Path]:
    """All ELF files below ``root``, links not followed."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) == _MAGIC:
                    yield path


def strip_all(root: Path) -> None:
    """Take debug information out of all ELF files below ``root``."""
    for path in files(root):
        data = path.read_bytes()
        smaller = without_debug_information(data)
        if len(smaller) < len(data):
            path.write_bytes(smaller)


def without_debug_information(data: bytes) -> bytes:
    """An ELF file without its ``.debug_*`` sections; ``data`` itself where there are none, or where
    it is anything else, or not laid out as linkers do."""
    try:
        return _rewritten(data) if data.startswith(_IDENT) else data
    except (struct.error, IndexError, ValueError):
        return data


def _rewritten(data: bytes) -> bytes:
    header = _HEADER.unpack_from(data)
    sections = [_Section(*item) for item in _table(data, _SECTION, header[5], header[11])]
    segments = list(_table(data, _SEGMENT, header[4], header[9]))
    # What is loaded, and the table that says so: neither moves.
    fixed = max(offset + size for _, _, offset, _, _, size, *_ in segments)
    fixed = max(fixed, header[4] + len(segments) * _SEGMENT.size)
    names = sections[header[12]].offset

    def is_debug(section: _Section) -> bool:
        start = names + section.name
        return data.startswith((b".debug_", b".zdebug_"), start, start + 8)

    debug = [item for item in sections if is_debug(item) and item.kind != _WITHOUT_BYTES]
    if not debug or any(item.flags & _ALLOCATED or item.offset < fixed for item in debug):
        return data
    for section in debug:
        # Its header stays, empty: symbols and other sections go by numbers.
        section.kind, section.size = _WITHOUT_BYTES, 0
    kept = bytearray(data[:fixed])
    for section in sorted(sections, key=lambda item: item.offset):
        if section.offset < fixed:
            continue
        body = data[section.offset : section.offset + section.size]
        kept += bytes(-len(kept) % max(section.alignment, 1))
        section.offset = len(kept)
        if section.kind != _WITHOUT_BYTES:
            kept += body
    kept += bytes(-len(kept) % 8)
    struct.pack_into("<Q", kept, _SECTIONS_AT, len(kept))
    return bytes(kept) + b"".join(section.packed() for section in sections)


def _table(data: bytes, row: struct.Struct, offset: int, count: int) -> list[tuple[int, ...]]:
    return [row.unpack_from(data, offset + number * row.size) for number in range(count)]
