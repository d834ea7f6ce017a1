"""Secret of a User, under its own name, with what its clients need.

The names of the keys are those that clients' configurations and other Kafka operators use.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark_operator.certificates.authority import KeyPair
from tidemark_operator.certificates.certificate_stores import SecretForm
from tidemark_operator.resources.names import GROUP, USER_UID_ANNOTATION
from tidemark_operator.users.passwords import checked
from tidemark_operator.users.scram import SALT_KEY_BYTES

#: No owner reference: a backup tool restores a Secret before its User, which then gets a new uid.
#: The garbage collector would delete the Secret, which is the only copy of the password.
USER_SECRETS = SecretForm(f"{GROUP}/user", "Opaque", USER_UID_ANNOTATION)

USERNAME, PASSWORD, JAAS, SALT_KEY = "username", "password", "sasl.jaas.config", "salt.key"
CERTIFICATE, KEY, TRUSTED = "user.crt", "user.key", "ca.crt"


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """A password and the key of its salt; ``repr`` shows neither."""

    password: str = field(repr=False)
    salt_key: bytes = field(repr=False)


def password_data(username: str, kept: StoredPassword) -> dict[str, bytes]:
    """Return the data for a user with a password."""
    return {
        USERNAME: username.encode(),
        PASSWORD: kept.password.encode(),
        JAAS: jaas(username, kept.password).encode(),
        SALT_KEY: kept.salt_key,
    }


def read_password(data: Mapping[str, bytes]) -> StoredPassword | None:
    """Return the password, None without one.

    A missing salt key is created. Raises :class:`BadPassword` for a password that a person has to
    correct.
    """
    if not data.get(PASSWORD):
        return None
    password = checked(data[PASSWORD], f"key {PASSWORD} of the User's Secret")
    salt_key = data.get(SALT_KEY, b"")
    # A person may have edited the Secret; a new key only changes the salt.
    if len(salt_key) != SALT_KEY_BYTES:
        salt_key = secrets.token_bytes(SALT_KEY_BYTES)
    return StoredPassword(password, salt_key)


def certificate_data(leaf: KeyPair, trusted: bytes) -> dict[str, bytes]:
    """Return the data for a user whose certificate the operator issues."""
    return {CERTIFICATE: leaf.certificate, KEY: leaf.key, TRUSTED: trusted}


def read_certificate(data: Mapping[str, bytes]) -> KeyPair | None:
    """Return the certificate and key; None if one of them is missing."""
    if not data.get(CERTIFICATE) or not data.get(KEY):
        return None
    return KeyPair(data[CERTIFICATE], data[KEY])


def jaas(username: str, password: str) -> str:
    """Return ``sasl.jaas.config`` for Kafka's Java clients.

    ``JaasConfig`` reads quotes and backslashes as Java's ``StreamTokenizer`` does.
    """
    name, word = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (username, password))
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{name}" password="{word}";'
