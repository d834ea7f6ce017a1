"""Encryption of a segment's objects with AES-256-GCM, and of its key by a key-encryption key.

Each copy of a segment has a random *data key*, which encrypts its log, frame by frame, and its
auxiliary object. The auxiliary object begins with a header in the clear: the id of the
key-encryption key, and the data key that is encrypted with it. Another key-encryption key therefore
changes the header only. The header has a fixed size, so the object keeps its size, too.

Header, big endian: magic ``TMSX``, version u16 (1), id of the key-encryption key (64 bytes, padded
with zeros), its check value (8 bytes), nonce (12 bytes), encrypted data key (32 bytes) and its tag
(16 bytes), and the CRC-32C of all that (u32). The CRC tells a damaged id from the id of a missing
key, and the check value tells a damaged object from a key with other bytes. The encrypted auxiliary
object and its tag (16 bytes) follow. Every encryption is bound to the name of the segment
(the last part of its key in the store) and to the number of the frame. So neither an object nor a
frame can take another one's place.
"""

import os
import struct
from typing import NamedTuple

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidemark.records.batch import Buffer
from tidemark.tier.metadata.layout import AUX_SUFFIX
from tidemark.tier.segments.integrity import ObjectVersionUnsupported
from tidemark.tier.stores.key_ring import (
    ID_BYTES_MAX,
    KEY_BYTES,
    NONCE_BYTES,
    WRAPPED_BYTES,
    KeyRing,
)

_MAGIC = b"TMSX"
_VERSION = 1
_FIELDS = struct.Struct(f">4sH{ID_BYTES_MAX}s{WRAPPED_BYTES}s")
_CRC = struct.Struct(">I")
#: Later versions keep this size: their checksum is verified before their version is read.
HEADER_BYTES = _FIELDS.size + _CRC.size
#: Number of the auxiliary object among what a data key encrypts; the log's frames follow.
_AUX_NUMBER = 0


class DataKey:
    """Key of one copy of a segment. Thread-safe."""

    __slots__ = ("_bytes", "_cipher", "_context")

    def __init__(self, key: bytes, name: bytes) -> None:
        """Use a key for the segment ``name``."""
        self._bytes, self._cipher = key, AESGCM(key)
        self._context = _context_of(name)

    @classmethod
    def create(cls, segment_key: str) -> "DataKey":
        """Return a random key for the objects of a segment."""
        return cls(os.urandom(KEY_BYTES), _name(segment_key))

    def seal(self, number: int, data: Buffer) -> bytes:
        """Encrypt the part of this number, which must never be used for other bytes."""
        # The key is random for each copy, so the numbers of its parts can be the nonces.
        return bytes(self._cipher.encrypt(number.to_bytes(NONCE_BYTES), data, self._context))

    def open(self, number: int, data: Buffer) -> bytes:
        """Decrypt the part of this number. Raises ValueError if it was changed."""
        try:
            return bytes(self._cipher.decrypt(number.to_bytes(NONCE_BYTES), data, self._context))
        except InvalidTag as error:
            raise ValueError("it does not decrypt with the segment's key") from error

    def wrapped(self, ring: KeyRing) -> bytes:
        """Return the header of the auxiliary object for the active key of a ring.

        Raises EncryptionKeyUnavailable.
        """
        key_id = ring.active_id.encode()
        wrapped = ring.wrap(self._bytes, self._context + key_id)
        fields = _FIELDS.pack(_MAGIC, _VERSION, key_id, wrapped)
        return fields + _CRC.pack(google_crc32c.value(fields))


class OpenedAux(NamedTuple):
    """Auxiliary object as it was packed, and the segment's data key; None without encryption."""

    packed: bytes
    key: DataKey | None


def seal_aux(packed: bytes, key: DataKey, header: bytes) -> bytes:
    """Return the stored form of a packed auxiliary object. ``header``: from ``DataKey.wrapped``."""
    return header + key.seal(_AUX_NUMBER, packed)


def open_aux(data: bytes, segment_key: str, ring: KeyRing) -> OpenedAux:
    """Return the content of a stored auxiliary object, which may be encrypted.

    ``segment_key``: without suffix. Raises SegmentUnreadable, and ValueError if the object was
    changed.
    """
    if not is_sealed(data):
        return OpenedAux(data, None)
    key = _unwrapped(data, segment_key, ring)
    return OpenedAux(key.open(_AUX_NUMBER, memoryview(data)[HEADER_BYTES:]), key)


def is_sealed(data: bytes) -> bool:
    """Return whether an auxiliary object, or its beginning, is that of an encrypted segment."""
    return data.startswith(_MAGIC)


def key_id_of(data: bytes, segment_key: str) -> str:
    """Return the id of the key-encryption key in the header of an encrypted auxiliary object.

    Raises ObjectVersionUnsupported, and ValueError if the header was changed.
    """
    return _parsed(data, segment_key)[0]


def has_active_key(data: bytes, segment_key: str, ring: KeyRing) -> bool:
    """Return whether the key in such a header is encrypted with the active key of a ring.

    Raises ObjectVersionUnsupported, and ValueError if the header was changed.
    """
    return ring.is_active(*_parsed(data, segment_key))


def rewrapped(data: bytes, segment_key: str, ring: KeyRing) -> bytes:
    """Return an encrypted auxiliary object for the active key of a ring; only its header differs.

    Raises SegmentUnreadable, and ValueError if the object was changed.
    """
    key = _unwrapped(data, segment_key, ring)
    # Decrypted before it is replaced, so that damage is not given a new header.
    key.open(_AUX_NUMBER, memoryview(data)[HEADER_BYTES:])
    return key.wrapped(ring) + data[HEADER_BYTES:]


def _unwrapped(data: bytes, segment_key: str, ring: KeyRing) -> DataKey:
    key_id, wrapped = _parsed(data, segment_key)
    name = _name(segment_key)
    context = _context_of(name) + key_id.encode()
    return DataKey(ring.unwrap(key_id, wrapped, context, segment_key), name)


def _parsed(data: bytes, segment_key: str) -> tuple[str, bytes]:
    """Return id of the key-encryption key, and the encrypted data key.

    Raises ObjectVersionUnsupported, and ValueError if the header was changed.
    """
    if len(data) < HEADER_BYTES:
        raise ValueError(f"it ends after {len(data)} bytes, within the header")
    magic, version, padded, wrapped = _FIELDS.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    if google_crc32c.value(data[: _FIELDS.size]) != crc:
        raise ValueError("the checksum of its header differs")
    if magic == _MAGIC and version > _VERSION:
        raise ObjectVersionUnsupported(segment_key + AUX_SUFFIX, version, _VERSION)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"its header has magic {magic!r} and version {version}")
    return padded.rstrip(b"\0").decode("ascii", "replace"), wrapped


def _context_of(name: bytes) -> bytes:
    """Return the additional data that binds an encryption to a segment."""
    return _MAGIC + struct.pack(">H", _VERSION) + name


def _name(segment_key: str) -> bytes:
    """Return the last part of a segment's key: its first offset and its id."""
    return segment_key.rpartition("/")[2].encode()
