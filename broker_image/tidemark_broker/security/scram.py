"""The server's side of SCRAM (RFC 5802, RFC 7677 for SHA-256; KIP-84 for its use in Kafka).

A server keeps what is derived from a password, never the password: who steals it cannot log in by
it. Names that nobody has are answered like others, with a salt that stays the same, and fail where
a wrong password fails.

hashlib and hmac are enough: the library that is there for it (scramp) refuses the authorization id
that clients may send, and brings an ASN.1 parser along for a channel binding that Kafka has not.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tidemark_broker.listeners import SCRAM_SHA_256, SCRAM_SHA_512
from tidemark_broker.security.errors import AuthenticationFailed

#: Name of a mechanism -> its number in ``ScramMechanism`` (KIP-554).
NUMBERS: Mapping[str, int] = MappingProxyType({SCRAM_SHA_256: 1, SCRAM_SHA_512: 2})
_HASHES = MappingProxyType({1: "sha256", 2: "sha512"})
_NONCE_BYTES = 24
_NAME_MAX = 255

_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?:,[a-zA-Z]+=[^,]*)*"
_CLIENT_FIRST = re.compile(
    r"(?P<gs2>[ny],(?:a=(?P<authzid>[^,]+))?,)"
    rf"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<unproven>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE})"
    rf"{_EXTENSIONS}),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What is kept of a password; ``mechanism`` by its number."""

    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def is_of(self, password: str) -> bool:
        """Is that the password? Takes as long as the iterations take, whatever it is."""
        salted = hashlib.pbkdf2_hmac(
            _HASHES[self.mechanism], password.encode(), self.salt, self.iterations
        )
        client_key = self.hmac(salted, b"Client Key")
        return hmac.compare_digest(self.hash(client_key), self.stored_key)

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """HMAC of the mechanism's hash."""
        return hmac.digest(key, message, _HASHES[self.mechanism])

    def hash(self, message: bytes) -> bytes:
        """The mechanism's hash."""
        return hashlib.new(_HASHES[self.mechanism], message).digest()


class ScramServer:
    """One exchange: :meth:`first`, then :meth:`final`. Both raise :class:`AuthenticationFailed`.
    ``credential_of`` gives one for every name, be it a user's or not."""

    def __init__(self, credential_of: Callable[[str], Credential]) -> None:
        self._credential_of = credential_of
        self.name = ""
        self.credential: Credential
        self._gs2 = ""
        self._client_first_bare = ""
        self._server_first = ""
        self._nonce = ""

    def first(self, message: bytes) -> bytes:
        """The answer to the client's first message: nonce, salt, iterations."""
        found = _CLIENT_FIRST.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed("the client's first SCRAM message cannot be read")
        self.name = _saslname(found["name"])
        if found["authzid"] is not None and _saslname(found["authzid"]) != self.name:
            raise AuthenticationFailed("it asks to act for another user")
        self._gs2, self._client_first_bare = found["gs2"], found["bare"]
        self.credential = self._credential_of(self.name)
        self._nonce = found["nonce"] + secrets.token_urlsafe(_NONCE_BYTES)
        salt = base64.b64encode(self.credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self.credential.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """The proof is checked; the answer proves that this side knows the user, too."""
        found = _CLIENT_FINAL.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed("the client's last SCRAM message cannot be read")
        bound = _decoded(found["binding"]) == self._gs2.encode()
        if not bound or not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the client's last SCRAM message is of another exchange")
        messages = self._client_first_bare, self._server_first, found["unproven"]
        signed = ",".join(messages).encode()
        self._check(_decoded(found["proof"]), signed)
        signature = self.credential.hmac(self.credential.server_key, signed)
        return b"v=" + base64.b64encode(signature)

    def _check(self, proof: bytes, signed: bytes) -> None:
        known = self.credential
        signature = known.hmac(known.stored_key, signed)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has another length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(known.hash(client_key), known.stored_key):
            raise AuthenticationFailed("no such user, or not its password")


def _text(message: bytes) -> str:
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationFailed("a SCRAM message is no UTF-8") from None


def _saslname(text: str) -> str:
    """RFC 5802, 5.1: a comma is ``=2C``, an equals sign ``=3D``; no other ``=`` stands there."""
    if len(text) > _NAME_MAX or re.search(r"=(?!2C|3D)", text):
        raise AuthenticationFailed("a user's name cannot be read")
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("a SCRAM message has what is no base64") from None
