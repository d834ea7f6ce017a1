"""SCRAM credentials (RFC 5802, RFC 7677, KIP-84): a broker's form of a password.

The salt is not random but derived from the password and a secret key that is stored beside it. It
stays the same as long as the password does, over restarts of the operator and under any leader, and
changes with the password. No salt has to be stored, can be lost, or can remain from a former
password. An HMAC under a random key of 32 bytes reveals nothing of the password. The key itself is
in the Secret that contains the password.

As in Kafka (``ScramFormatter.normalize``), a password is its UTF-8, without SASLprep.
"""

import enum
import hashlib
import hmac

from tidemark.wire.users import ScramCredential

#: Kafka's default is its minimum, 4096; twice that costs a client some milliseconds.
ITERATIONS = 8192
SALT_KEY_BYTES = 32


class Mechanism(enum.IntEnum):
    """Mechanisms with KIP-554's numbers; :attr:`hash` is hashlib's name."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def hash(self) -> str:
        """Name of the hash function in hashlib."""
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"


def salt_of(salt_key: bytes, password: str, mechanism: Mechanism) -> bytes:
    """Return the salt (32 bytes) of a password under a user's own ``salt_key``."""
    return hmac.digest(salt_key, f"{mechanism.name}\0{password}".encode(), "sha256")


def credential(
    password: str, salt: bytes, mechanism: Mechanism, iterations: int = ITERATIONS
) -> ScramCredential:
    """Return the SCRAM credential that a broker needs to verify a password (RFC 5802, section 3).

    Takes milliseconds with the interpreter lock released: call it in a thread.
    """
    salted = hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash)
    return ScramCredential(
        mechanism=int(mechanism),
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(mechanism.hash, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.hash),
    )
