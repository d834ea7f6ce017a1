"""The client's side of SCRAM (RFC 5802, RFC 7677, KIP-84). Pure: the nonce is given to it.

A password is its UTF-8, without SASLprep, as in Kafka.
"""

import base64
import binascii
import hashlib
import hmac
import re

#: By Kafka's names of the mechanisms: hashlib's of what they hash with.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Nobody asks for more in earnest, and each is worked off.
_ITERATIONS_MAX = 1_000_000
_CHALLENGE = re.compile(r"r=(?P<nonce>[^,]+),s=(?P<salt>[^,]+),i=(?P<iterations>\d{1,9})(?:,.*)?")
_GS2 = "n,,"


class ScramRefused(ConnectionError):
    """The other side does not know the password, or does not speak SCRAM."""


class ScramClient:
    """One exchange: :meth:`first`, :meth:`final`, :meth:`check`."""

    def __init__(self, mechanism: str, name: str, password: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The message that begins it."""
        return f"{_GS2}{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof. Raises :class:`ScramRefused`."""
        text = challenge.decode("utf-8", "replace")
        found = _CHALLENGE.fullmatch(text)
        if found is None or not found["nonce"].startswith(self._nonce):
            raise ScramRefused("what answers does not speak SCRAM")
        iterations = int(found["iterations"])
        if not 0 < iterations <= _ITERATIONS_MAX:
            raise ScramRefused(f"it asks for {iterations} iterations")
        salt = _decoded(found["salt"])
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        key = self._hmac(salted, b"Client Key")
        unproven = f"c={base64.b64encode(_GS2.encode()).decode()},r={found['nonce']}"
        signed = ",".join((self._bare, text, unproven)).encode()
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        mask = self._hmac(hashlib.new(self._hash, key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(key, mask, strict=True))
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """That the other side knows the user, too. Raises :class:`ScramRefused`."""
        wanted = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(answer.partition(b",")[0], wanted):
            raise ScramRefused("what answers does not know this user: it may be somebody else")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramRefused("what answers does not speak SCRAM") from None
