"""The Secret that a User is given, under its own name: what its clients need, and nothing else.

Names of the keys are those that clients' configurations and other operators of Kafka use.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark_operator.certificates.authority import KeyPair
from tidemark_operator.certificates.certificate_stores import SecretForm
from tidemark_operator.resources.names import GROUP, USER_UID_ANNOTATION
from tidemark_operator.users.passwords import checked
from tidemark_operator.users.scram import SALT_KEY_BYTES

#: Without an owner reference: a backup tool restores a Secret before its User, which then gets a
#: new uid. The garbage collector would delete the Secret, which is the only copy of the password.
USER_SECRETS = SecretForm(f"{GROUP}/user", "Opaque", USER_UID_ANNOTATION)

USERNAME, PASSWORD, JAAS, SALT_KEY = "username", "password", "sasl.jaas.config", "salt.key"
CERTIFICATE, KEY, TRUSTED = "user.crt", "user.key", "ca.crt"


@dataclass(frozen=True, slots=True)
class KeptPassword:
    """A password and the key of its salt; ``repr`` shows neither."""

    password: str = field(repr=False)
    salt_key: bytes = field(repr=False)


def password_data(username: str, kept: KeptPassword) -> dict[str, bytes]:
    """Of a user with a password."""
    return {
        USERNAME: username.encode(),
        PASSWORD: kept.password.encode(),
        JAAS: jaas(username, kept.password).encode(),
        SALT_KEY: kept.salt_key,
    }


def read_password(data: Mapping[str, bytes]) -> KeptPassword | None:
    """Return the password, with a new salt key if there is none; None without a password. Raises
    :class:`BadPassword` for a password that a person has to correct."""
    if not data.get(PASSWORD):
        return None
    password = checked(data[PASSWORD], f"key {PASSWORD} of the User's Secret")
    salt_key = data.get(SALT_KEY, b"")
    if len(salt_key) != SALT_KEY_BYTES:
        salt_key = secrets.token_bytes(SALT_KEY_BYTES)
    return KeptPassword(password, salt_key)


def certificate_data(leaf: KeyPair, trusted: bytes) -> dict[str, bytes]:
    """Of a user whose certificate the operator issues."""
    return {CERTIFICATE: leaf.certificate, KEY: leaf.key, TRUSTED: trusted}


def read_certificate(data: Mapping[str, bytes]) -> KeyPair | None:
    """What stands there; None where it is not whole."""
    if not data.get(CERTIFICATE) or not data.get(KEY):
        return None
    return KeyPair(data[CERTIFICATE], data[KEY])


def jaas(username: str, password: str) -> str:
    """``sasl.jaas.config`` of Kafka's Java clients (``JaasConfig`` reads quotes and backslashes as
    Java's ``StreamTokenizer`` does)."""
    name, word = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (username, password))
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{name}" password="{word}";'
