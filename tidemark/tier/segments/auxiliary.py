"""Auxiliary object of a copied segment: indexes, snapshots and digests, packed into one object.

Two objects per segment keep the cost of an upload low (stores charge by request). Layout, big
endian: magic ``TMAX``, version u16, number of sections u16; per section kind u16, reserved u16,
length u32, CRC-32C u32; then the sections in that order. A reader checks every CRC and skips
unknown kinds.

Piece digests are those of the segment's log, 32 bytes for each 256 KiB of it (``integrity``). The
table of frames is in segments that are compressed or encrypted (``frames``). The object of an
encrypted segment is encrypted as a whole (``sealing``).

Version 4 is written. It names the algorithm of its digests. In earlier versions they are SHA-256.
Version 1 has no digests and version 2 no frames; 3 has both.

The aborted ranges are complete for the segment: every aborted transaction that overlaps it, and the
first offset of one that is still open at its end. A reader therefore needs no other segment.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

import google_crc32c

from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.tier.metadata.layout import AUX_SUFFIX
from tidemark.tier.metadata.segment import DigestAlgorithm
from tidemark.tier.segments.frames import Frames
from tidemark.tier.segments.integrity import (
    COPY_ALGORITHM,
    ObjectDamaged,
    ObjectVersionUnsupported,
    split_pieces,
)
from tidemark.tier.segments.sealing import OpenedAux

_MAGIC = b"TMAX"
_VERSION = 4
_HEADER = struct.Struct(">4sHH")
_SECTION = struct.Struct(">HHII")
_OFFSET_INDEX, _TIME_INDEX, _LEADER_EPOCHS, _PRODUCER_SNAPSHOT, _ABORTED = 1, 2, 3, 4, 5
_PIECES, _ORIGIN, _FRAMES, _ALGORITHM, _SOUND_BATCHES = 6, 7, 8, 9, 10
_ABORTED_KEYS = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")


class AuxCorrupt(ObjectDamaged):
    """The packed object is damaged, or has a version that this code does not know."""


@dataclass(frozen=True, slots=True)
class AbortedRanges:
    """Aborted transactions that overlap a segment.

    ``first_open_offset``: first offset of a transaction that is still open at its end, None for
    none.
    """

    transactions: tuple[AbortedTxn, ...] = ()
    first_open_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aux:
    """Content of the auxiliary object, with bytes as in Kafka's files.

    ``leader_epochs``: the checkpoint's text, from the start of the log to the segment's end.
    ``producer_snapshot``: the state at the segment's end. ``pieces``: digests of the log's pieces
    in order, empty if unknown. ``algorithm``: of the digests of pieces and frames. ``origin``: the
    manifest's entry of the copy and the head's version at that time (``segment_origin``), empty if
    an older version of Tidemark copied the segment. ``frames``: table of the stored log's frames,
    None if the log is stored byte for byte. ``has_sound_batches``: the CRC-32C, base offset and
    leader epoch of each batch were checked during the copy, so a reader needs the digests only.
    """

    offset_index: bytes
    time_index: bytes
    leader_epochs: bytes
    producer_snapshot: bytes
    aborted: AbortedRanges = AbortedRanges()
    pieces: tuple[bytes, ...] = ()
    algorithm: DigestAlgorithm = COPY_ALGORITHM
    origin: bytes = b""
    frames: Frames | None = None
    has_sound_batches: bool = False


def pack(aux: Aux) -> bytes:
    """Return the packed object."""
    sections = (
        (_OFFSET_INDEX, aux.offset_index),
        (_TIME_INDEX, aux.time_index),
        (_LEADER_EPOCHS, aux.leader_epochs),
        (_PRODUCER_SNAPSHOT, aux.producer_snapshot),
        (_ABORTED, _encode_aborted(aux.aborted)),
        (_PIECES, b"".join(aux.pieces)),
        *(((_ORIGIN, aux.origin),) if aux.origin else ()),
        *(((_FRAMES, aux.frames.encode()),) if aux.frames is not None else ()),
        (_ALGORITHM, aux.algorithm.encode("ascii")),
        *(((_SOUND_BATCHES, b""),) if aux.has_sound_batches else ()),
    )
    table = (_SECTION.pack(kind, 0, len(data), _crc(data)) for kind, data in sections)
    header = _HEADER.pack(_MAGIC, _VERSION, len(sections))
    return b"".join((header, *table, *(data for _, data in sections)))


def check_version(data: bytes, segment_key: str) -> None:
    """Raise ObjectVersionUnsupported for a packed object of a later version."""
    version = int.from_bytes(data[4:6])
    if data.startswith(_MAGIC) and version > _VERSION:
        raise ObjectVersionUnsupported(segment_key + AUX_SUFFIX, version, _VERSION)


def unpack(data: bytes, where: str) -> Aux:
    """Return the content of a packed object. ``where`` names it in errors. Raises AuxCorrupt."""
    try:
        version, sections = _sections(data)
        algorithm = _algorithm_of(version, sections)
        # From version 4 on, a table of frames is optional. Version 3 always has it.
        has_frames = version == 3 or (version > 3 and _FRAMES in sections)
        return Aux(
            offset_index=sections[_OFFSET_INDEX],
            time_index=sections[_TIME_INDEX],
            leader_epochs=sections[_LEADER_EPOCHS],
            producer_snapshot=sections[_PRODUCER_SNAPSHOT],
            aborted=_decode_aborted(sections[_ABORTED]),
            # Only format version 2 and later has digests of the log's pieces.
            pieces=split_pieces(sections[_PIECES]) if version > 1 else (),
            algorithm=algorithm,
            origin=sections.get(_ORIGIN, b""),
            frames=Frames.parse(sections[_FRAMES], algorithm) if has_frames else None,
            has_sound_batches=_SOUND_BATCHES in sections,
        )
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise AuxCorrupt(f"{where} is damaged or of another format ({error!r})") from error


def unpack_opened(opened: OpenedAux, where: str) -> Aux:
    """Return the content of an auxiliary object that was decrypted. Raises AuxCorrupt."""
    aux = unpack(opened.packed, where)
    if aux.frames is None or opened.key is None:
        return aux
    return replace(aux, frames=replace(aux.frames, key=opened.key))


def _algorithm_of(version: int, sections: Mapping[int, bytes]) -> DigestAlgorithm:
    """Return the algorithm of the digests. Raises ValueError, KeyError."""
    if version < 4:
        return DigestAlgorithm.SHA256
    return DigestAlgorithm.of_name(sections[_ALGORITHM].decode("ascii"))


def _sections(data: bytes) -> tuple[int, dict[int, bytes]]:
    """Split a packed object into its format version and its sections by kind.

    The kinds are the ``_OFFSET_INDEX``, ``_TIME_INDEX``, ... constants. Raises ValueError or
    struct.error if the magic, a length or a CRC is wrong.
    """
    magic, version, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or not 1 <= version <= _VERSION:
        raise ValueError(f"magic {magic!r}, version {version}")
    # The table of sections comes first, so each section's place follows from the lengths before it.
    position = _HEADER.size + count * _SECTION.size
    sections: dict[int, bytes] = {}
    for index in range(count):
        kind, _, length, crc = _SECTION.unpack_from(data, _HEADER.size + index * _SECTION.size)
        section = data[position : position + length]
        if len(section) != length or _crc(section) != crc:
            raise ValueError(f"section {kind} is cut off or its CRC differs")
        sections[kind] = section
        position += length
    # Bytes behind the last section are not covered by any CRC.
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes behind the last section")
    return version, sections


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def _encode_aborted(aborted: AbortedRanges) -> bytes:
    rows = [
        dict(
            zip(
                _ABORTED_KEYS,
                (t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset),
                strict=True,
            )
        )
        for t in aborted.transactions
    ]
    fields = {"aborted": rows, "firstOpenOffset": aborted.first_open_offset}
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def _decode_aborted(data: bytes) -> AbortedRanges:
    fields = json.loads(data)
    rows = (tuple(int(row[key]) for key in _ABORTED_KEYS) for row in fields["aborted"])
    first_open = fields["firstOpenOffset"]
    transactions = tuple(AbortedTxn(*row) for row in rows)
    return AbortedRanges(transactions, None if first_open is None else int(first_open))
