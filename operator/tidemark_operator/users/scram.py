"""SCRAM credentials (RFC 5802, RFC 7677, KIP-84): what a broker keeps of a password.

The salt is not drawn anew but made of the password and a secret key that is kept beside it: so it
stays the same for as long as the password does, over restarts of the operator and whichever of two
operators leads, and is another one when the password is. There is no salt to be stored, to be lost,
or to be left over from a former password. An HMAC under a random key of 32 bytes tells nobody
anything of the password; whoever knows that key has the Secret in which the password itself lies.

As in Kafka (``ScramFormatter.normalize``) a password is its UTF-8, without SASLprep.
"""

import enum
import hashlib
import hmac

from tidemark.wire.users import ScramCredential

#: Kafka's default is its least, 4096; twice as many cost a client some milliseconds.
ITERATIONS = 8192
SALT_KEY_BYTES = 32


class Mechanism(enum.IntEnum):
    """Numbers of KIP-554; the value of :attr:`hash` is hashlib's name."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def hash(self) -> str:
        """The hash function."""
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"


def salt_of(salt_key: bytes, password: str, mechanism: Mechanism) -> bytes:
    """The salt (32 bytes) of a password under a user's own ``salt_key``."""
    return hmac.digest(salt_key, f"{mechanism.name}\0{password}".encode(), "sha256")


def credential(
    password: str, salt: bytes, mechanism: Mechanism, iterations: int = ITERATIONS
) -> ScramCredential:
    """What a broker is given (RFC 5802, 3). Takes milliseconds, without the interpreter's lock:
    call it in a thread."""
    salted = hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash)
    return ScramCredential(
        mechanism=int(mechanism),
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(mechanism.hash, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.hash),
    )
