"""The Secret that a User is given, under its own name: what its clients need, and nothing else.

Names of the keys are those that clients' configurations and other operators of Kafka use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark_operator.certificates.authority import KeyPair
from tidemark_operator.certificates.keepers import SecretForm
from tidemark_operator.resources.names import GROUP
from tidemark_operator.users.passwords import BadPassword, checked
from tidemark_operator.users.scram import SALT_KEY_BYTES

USER_SECRETS = SecretForm(f"{GROUP}/user", "Opaque")

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
    """What stands there; None where it is not whole."""
    try:
        password = checked(data.get(PASSWORD, b""), PASSWORD)
    except BadPassword:
        return None
    salt_key = data.get(SALT_KEY, b"")
    return KeptPassword(password, salt_key) if len(salt_key) == SALT_KEY_BYTES else None


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
