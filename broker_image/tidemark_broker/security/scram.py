"""Server side of SCRAM (RFC 5802, RFC 7677 for SHA-256; KIP-84 for Kafka).

A server stores values derived from a password, never the password. They do not suffice to log in.
Unknown names are answered like known ones, with a stable salt, and fail at the same point as a
wrong password.

hashlib and hmac suffice: the available library (scramp) rejects the authorization id that clients
may send, and needs an ASN.1 parser for a channel binding that Kafka lacks.
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

#: Mechanism -> its number in ``ScramMechanism`` (KIP-554).
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
    """Stored values of a password; ``mechanism`` by its number."""

    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def is_of(self, password: str) -> bool:
        """Return whether the password fits. The time does not depend on the password."""
        salted = hashlib.pbkdf2_hmac(
            _HASHES[self.mechanism], password.encode(), self.salt, self.iterations
        )
        # The same derivation as in a SCRAM exchange, so PLAIN needs no stored password.
        client_key = self.hmac(salted, b"Client Key")
        return hmac.compare_digest(self.hash(client_key), self.stored_key)

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """Return the HMAC with the mechanism's hash."""
        return hmac.digest(key, message, _HASHES[self.mechanism])

    def hash(self, message: bytes) -> bytes:
        """Return the mechanism's hash."""
        return hashlib.new(_HASHES[self.mechanism], message).digest()


class ScramServer:
    """One exchange: :meth:`first`, then :meth:`final`. Both raise :class:`AuthenticationFailed`.

    ``credential_of`` returns a credential for every name, known or not.
    """

    def __init__(self, credential_of: Callable[[str], Credential]) -> None:
        self._credential_of = credential_of
        self.name = ""
        self.credential: Credential
        self._gs2 = ""
        self._client_first_bare = ""
        self._server_first = ""
        self._nonce = ""

    def first(self, message: bytes) -> bytes:
        """Return the server-first message: nonce, salt, iterations (RFC 5802, section 5)."""
        found = _CLIENT_FIRST.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed("the first SCRAM message is malformed")
        self.name = _saslname(found["name"])
        # An authorization id is accepted only if it is the user's own name.
        if found["authzid"] is not None and _saslname(found["authzid"]) != self.name:
            raise AuthenticationFailed("the client requests to act for another user")
        self._gs2, self._client_first_bare = found["gs2"], found["bare"]
        # An unknown user gets a decoy, so the answer does not reveal which users exist.
        self.credential = self._credential_of(self.name)
        # Both sides contribute to the nonce, so neither can replay an earlier exchange.
        self._nonce = found["nonce"] + secrets.token_urlsafe(_NONCE_BYTES)
        salt = base64.b64encode(self.credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self.credential.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """Check the client's proof; return the server-final message with the server's signature.

        The signature proves to the client that this server knows the user, too. Raises
        :class:`AuthenticationFailed`.
        """
        found = _CLIENT_FINAL.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed("the last SCRAM message is malformed")
        # Channel binding and nonce tie the message to this exchange, against replay.
        bound = _decoded(found["binding"]) == self._gs2.encode()
        if not bound or not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the last SCRAM message belongs to another exchange")
        # Proof and signature cover all messages of the exchange (AuthMessage in RFC 5802).
        messages = self._client_first_bare, self._server_first, found["unproven"]
        signed = ",".join(messages).encode()
        self._check(_decoded(found["proof"]), signed)
        signature = self.credential.hmac(self.credential.server_key, signed)
        return b"v=" + base64.b64encode(signature)

    def _check(self, proof: bytes, signed: bytes) -> None:
        known = self.credential
        # RFC 5802, 3: the proof is the client key xor a signature. Its hash must be the stored key.
        signature = known.hmac(known.stored_key, signed)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has a wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(known.hash(client_key), known.stored_key):
            raise AuthenticationFailed("unknown user or wrong password")


def _text(message: bytes) -> str:
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the SCRAM message is not UTF-8") from None


def _saslname(text: str) -> str:
    """Decode a name (RFC 5802, 5.1): ``=2C`` is a comma, ``=3D`` an equals sign, any other
    ``=`` is invalid.
    """
    if len(text) > _NAME_MAX or re.search(r"=(?!2C|3D)", text):
        raise AuthenticationFailed("the user name is malformed")
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("the SCRAM message has invalid base64") from None
