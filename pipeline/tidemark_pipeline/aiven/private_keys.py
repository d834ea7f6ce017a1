"""Private RSA keys that decrypt the keys of segments.

The plug-in encrypts the AES key of a segment with a public RSA key: OAEP of RFC 8017, section 7.1,
with SHA3-512 for the hash and for the mask (MGF1), and an empty label. ``cryptography`` does not
support SHA-3 there, so the padding is removed here.
"""

import functools
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPrivateNumbers
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tidemark.error_text import error_text
from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.objects import StoreUnavailable

#: Option of a job with the files of the keys.
KEYS_OPTION = "aivenKeyLocations"
_HASH_BYTES = 64
_KEYS_MAX = 100
_EMPTY_LABEL = hashlib.sha3_512(b"").digest()


class PrivateKeyMissing(StoreUnavailable):
    """The private key of a segment is not configured, or is another key. Nothing is damaged."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(
            f"{what} is encrypted. {problem}. Name the file of the plug-in's private key with that "
            f'id: {KEYS_OPTION}={{"ID": "FILE"}}',
            reason=Reason.ENCRYPTION_KEY_MISSING,
            retriable=False,
        )


@dataclass(frozen=True, slots=True)
class PrivateKeys:
    """Private keys in PEM by the ids of the plug-in (``encryption.key.pairs``)."""

    pems: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the files that the JSON ``{"ID": "FILE"}`` names. Raises InvalidConfig."""
        try:
            files = {str(key_id): str(path) for key_id, path in json.loads(text).items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise InvalidConfig(
                f'{KEYS_OPTION} is {text!r}; write {{"ID": "FILE"}} with the id and the file of '
                "each private key"
            ) from error
        if len(files) > _KEYS_MAX:
            raise InvalidConfig(
                f"{KEYS_OPTION} has {count(len(files), 'key')}, at most {_KEYS_MAX} are read"
            )
        return cls({key_id: _read(key_id, Path(path)) for key_id, path in files.items()})

    def unwrap(self, key_id: str, wrapped: bytes, what: str) -> bytes:
        """Decrypt the key of a segment. ``what`` names the segment in errors.

        Raises PrivateKeyMissing.
        """
        pem = self.pems.get(key_id)
        if pem is None:
            known = f", only {', '.join(sorted(self.pems))}" if self.pems else ""
            raise PrivateKeyMissing(what, f"Its key {key_id!r} is not configured{known}")
        found = _without_padding(_numbers(pem), wrapped)
        if found is None:
            problem = f"The file of key {key_id!r} has another key than the plug-in used"
            raise PrivateKeyMissing(what, problem)
        return found


#: Keys of a tier that is not encrypted.
NO_PRIVATE_KEYS = PrivateKeys()


def _read(key_id: str, path: Path) -> bytes:
    """Return the PEM of a private key. Raises InvalidConfig."""
    try:
        pem = path.read_bytes()
    except OSError as error:
        raise InvalidConfig(
            f"{KEYS_OPTION}: the file of key {key_id!r} cannot be read: {error_text(error)}"
        ) from error
    try:
        _numbers(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidConfig(
            f"{KEYS_OPTION}: {path}, the file of key {key_id!r}, is no private RSA key in PEM "
            "without a password"
        ) from error
    return pem


@functools.lru_cache(maxsize=_KEYS_MAX)
def _numbers(pem: bytes) -> RSAPrivateNumbers:
    """Return the numbers of a key. Raises ValueError, TypeError or UnsupportedAlgorithm."""
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, RSAPrivateKey):
        raise TypeError("not RSA")
    return key.private_numbers()


def _without_padding(key: RSAPrivateNumbers, wrapped: bytes) -> bytes | None:
    """Decrypt and remove the padding of OAEP; None if it was encrypted for another key."""
    modulus = key.public_numbers.n
    size = (modulus.bit_length() + 7) // 8
    number = int.from_bytes(wrapped)
    if len(wrapped) != size or number >= modulus or size < 2 * _HASH_BYTES + 2:
        return None
    # By the remainder theorem (RFC 8017, 5.1.2), four times as fast as by the exponent ``d``.
    first, second = pow(number, key.dmp1, key.p), pow(number, key.dmq1, key.q)
    message = (second + (first - second) * key.iqmp % key.p * key.q).to_bytes(size)
    # One zero byte, the masked seed, and the masked block: hash of the label, zeros, 1, content.
    masked_seed, masked_block = message[1 : _HASH_BYTES + 1], message[_HASH_BYTES + 1 :]
    seed = _xor(masked_seed, _mask(masked_block, _HASH_BYTES))
    block = _xor(masked_block, _mask(seed, len(masked_block)))
    label, padded = block[:_HASH_BYTES], block[_HASH_BYTES:].lstrip(b"\0")
    is_ours = hmac.compare_digest(label, _EMPTY_LABEL)
    return padded[1:] if is_ours and message[0] == 0 and padded.startswith(b"\1") else None


def _mask(seed: bytes, size: int) -> bytes:
    """Return MGF1 of a seed (RFC 8017, appendix B.2.1)."""
    blocks = range(-(-size // _HASH_BYTES))
    return b"".join(hashlib.sha3_512(seed + n.to_bytes(4)).digest() for n in blocks)[:size]


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))
