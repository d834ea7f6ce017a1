"""Key-encryption keys of a remote store: they encrypt the keys of segments.

The keys are a text, in a Secret or in a file. Each line has the id of a key, a colon, and 32 random
bytes in base64, or the same bytes as AWS KMS has encrypted them (``aws_kms``). The key of the first
line is *active*: it encrypts the keys of new segments. The others decrypt those of older segments.
If the first line is ``none``, no key is active, and new segments are not encrypted. Empty lines and
lines that start with ``#`` are skipped.
"""

import base64
import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidemark.reasons import Reason
from tidemark.tier.stores.aws_kms import KmsKey
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.objects import SegmentUnreadable

#: Field with the text, also the key of a Secret; option of a job with the file of the text.
KEYS_NAME = "encryptionKeys"
KEYS_OPTION = "encryptionKeysLocation"

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
_CHECK_BYTES = 8
_SEALED_AT = _CHECK_BYTES + NONCE_BYTES
#: Size of an encrypted key: check value of the key-encryption key, then nonce, key and tag of
#: AES-256-GCM.
WRAPPED_BYTES = _SEALED_AT + KEY_BYTES + TAG_BYTES
#: First line of a ring without an active key.
_NONE = "none"
#: Limits of a ring. An id has a field of fixed size in each segment's auxiliary object.
ID_BYTES_MAX = 64
_KEYS_MAX = 100
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{ID_BYTES_MAX - 1}}}")


class EncryptionKeyMissing(SegmentUnreadable):
    """No key of the ring has the id that a segment names, or that key has other bytes."""

    def __init__(self, key_id: str, what: str, *, has_other_bytes: bool = False) -> None:
        problem = "which is not among the encryption keys of the remote storage"
        if has_other_bytes:
            problem = f"and no line of {key_id!r} has the bytes that this key had"
        super().__init__(
            f"{what} is encrypted with key {key_id!r}, {problem}. Add the line of {key_id!r}, with "
            "the bytes of that time, to the Secret of encryptionKeysSecretRef. A job needs the "
            f"file with it ({KEYS_OPTION}, --encryption-keys). Meanwhile nothing is lost",
            reason=Reason.ENCRYPTION_KEY_MISSING,
        )


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys with their ids, none if no segment is encrypted.

    Keys may share an id, because an administrator may have changed the bytes of one. ``encrypts``:
    whether the first key is active. Otherwise all keys only decrypt.
    """

    keys: tuple[tuple[str, bytes | KmsKey], ...] = field(default=(), repr=False)
    encrypts: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of the keys. Raises InvalidConfig, without any key."""
        keys: list[tuple[str, bytes | KmsKey]] = []
        encrypts = True
        for number, line in enumerate(text.splitlines(), 1):
            content = line.strip()
            if not content or content.startswith("#"):
                continue
            if content == _NONE and not keys:
                encrypts = False
                continue
            key_id, _, encoded = (part.strip() for part in content.partition(":"))
            if not _ID.fullmatch(key_id):
                raise _invalid(number, "an id of up to 64 letters, digits, dots and hyphens")
            is_of_kms = encoded.startswith("arn:")
            key = KmsKey.parse(encoded) if is_of_kms else _decoded(encoded)
            if key is None:
                expected = f"a colon and {KEY_BYTES} bytes in base64 after the id"
                if is_of_kms:
                    expected = "the ARN of a key of KMS and a CiphertextBlob in base64 after the id"
                raise _invalid(number, expected)
            if (key_id, key) in keys:
                first = keys.index((key_id, key)) + 1
                raise _invalid(number, f"another key than key {first}")
            keys.append((key_id, key))
        if len(keys) > _KEYS_MAX:
            raise InvalidConfig(f"remoteStorage: {KEYS_NAME} has more than {_KEYS_MAX} keys")
        # Brokers would store segments in the clear, although keys were meant to be configured.
        if not keys:
            raise InvalidConfig(
                f"remoteStorage: {KEYS_NAME} has no key. Add a line with a key, or remove the "
                "reference to it"
            )
        return cls(tuple(keys), encrypts)

    @property
    def active_id(self) -> str:
        """Id of the key that encrypts the keys of new segments, "" for none."""
        return self.keys[0][0] if self.keys and self.encrypts else ""

    def to_text(self) -> str:
        """Return the text that ``parse`` reads."""
        lines = [f"{key_id}: {_encoded(key)}\n" for key_id, key in self.keys]
        return "".join(lines if self.encrypts else (f"{_NONE}\n", *lines))

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """Encrypt a segment's key with the active key. ``context`` is needed to decrypt it.

        Raises EncryptionKeyUnavailable.
        """
        nonce, key = os.urandom(NONCE_BYTES), _bytes_of(self.keys[0][1])
        return _check_value(key) + nonce + bytes(AESGCM(key).encrypt(nonce, data_key, context))

    def is_active(self, key_id: str, wrapped: bytes) -> bool:
        """Return whether a segment's key was encrypted with the active key.

        Raises EncryptionKeyUnavailable.
        """
        if not key_id or key_id != self.active_id:
            return False
        return wrapped.startswith(_check_value(_bytes_of(self.keys[0][1])))

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes, what: str) -> bytes:
        """Decrypt a segment's key. ``what`` names the segment in errors.

        Raises EncryptionKeyMissing, EncryptionKeyUnavailable, and ValueError if the encrypted key
        was changed.
        """
        named = [key for name, key in self.keys if name == key_id]
        # Another key of the same id is a mistake in the Secret. It must not look like damage, for
        # which users give up records, and sweeps delete what no manifest names.
        keys = map(_bytes_of, named)
        key = next((key for key in keys if wrapped.startswith(_check_value(key))), None)
        if key is None:
            raise EncryptionKeyMissing(key_id, what, has_other_bytes=bool(named))
        nonce, sealed = wrapped[_CHECK_BYTES:_SEALED_AT], wrapped[_SEALED_AT:]
        try:
            return bytes(AESGCM(key).decrypt(nonce, sealed, context))
        except InvalidTag as error:
            raise ValueError(
                f"its key cannot be decrypted with key {key_id!r}: the object was changed, or is "
                "that of another segment"
            ) from error


#: Ring of a store whose segments are not encrypted.
NO_KEYS = KeyRing()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptableStorage:
    """Base of the configurations of remote stores, with the keys that encrypt segments."""

    key_ring: KeyRing = NO_KEYS


def _check_value(key: bytes) -> bytes:
    """Return bytes that identify a key, and reveal nothing else about it."""
    return hmac.digest(key, b"tidemark key check", hashlib.sha256)[:_CHECK_BYTES]


def _bytes_of(key: bytes | KmsKey) -> bytes:
    """Return the bytes of a key. Raises EncryptionKeyUnavailable."""
    return key.decrypted() if isinstance(key, KmsKey) else key


def _encoded(key: bytes | KmsKey) -> str:
    return key.to_text() if isinstance(key, KmsKey) else base64.b64encode(key).decode()


def _decoded(encoded: str) -> bytes | None:
    """Return the bytes of a key, None if the text is not a key in base64."""
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


def _invalid(number: int, expected: str) -> InvalidConfig:
    return InvalidConfig(f"remoteStorage: {KEYS_NAME}: line {number} must have {expected}")
