"""Secret of a User, under its own name, with what its clients need.

The names of the keys are those that clients' configurations and other Kafka operators use.

The operator generates a password, or reads it from a Secret that a manifest names. A ``User`` makes
the operator read a Secret and copy a value of it. So the operator reads only a Secret that its
owner offers to Users. It rejects types that Kubernetes or other programs fill with credentials, and
values that are not one line of text.
"""

import base64
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark_operator.certificates.certificate_stores import SecretForm
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.secrets import OfferedTo, SecretProblem, offered_secret
from tidemark_operator.resources.names import GROUP, USER_UID_ANNOTATION
from tidemark_operator.users.scram import SALT_KEY_BYTES

LENGTH = 32
BYTES_MAX = 1024
_ALPHABET = string.ascii_letters + string.digits
_TYPES = ("", "Opaque", "kubernetes.io/basic-auth")


class BadPassword(Exception):
    """A password cannot be used; the text says what to do, without any part of the password."""


def make_password() -> str:
    """Return a new password of 32 letters and digits, which is 190 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(LENGTH))


async def offered_password(api: KubeApi, namespace: str, name: str, key: str) -> str:
    """Return the password in a Secret. Raises :class:`BadPassword`, ``KubeError``."""
    try:
        body = await offered_secret(api, namespace, name, OfferedTo.USER)
    except SecretProblem as error:
        raise BadPassword(str(error)) from error
    type_ = str(body.get("type") or "")
    # Tokens of service accounts and registry credentials must not become passwords.
    if type_ not in _TYPES:
        raise BadPassword(f"Secret {name} has type {type_}. Use one of type Opaque")
    text = (body.get("data") or {}).get(key)
    if text is None:
        raise BadPassword(f"Secret {name} has no key {key}. Add it")
    return checked(base64.b64decode(text), f"key {key} of Secret {name}")


def checked(raw: bytes, where: str) -> str:
    """Return the password that some bytes encode. Raises :class:`BadPassword`."""
    try:
        password = raw.decode()
    except UnicodeDecodeError:
        raise BadPassword(f"{where} is not UTF-8 text") from None  # the cause shows the bytes
    if not 0 < len(raw) <= BYTES_MAX:
        raise BadPassword(f"{where} has {len(raw)} bytes, but a password has 1 to {BYTES_MAX}")
    if not password.isprintable():
        raise BadPassword(
            f"{where} contains a line break or another control character. Store "
            "only the password (printf, not echo)"
        )
    return password


#: No owner reference: a backup tool restores a Secret before its User, which then gets a new uid.
#: The garbage collector would delete the Secret, which is the only copy of the password.
USER_SECRETS = SecretForm(f"{GROUP}/user", "Opaque", USER_UID_ANNOTATION)

USERNAME, PASSWORD, JAAS, SALT_KEY = "username", "password", "sasl.jaas.config", "salt.key"
#: Keys of a certificate that the operator issues.
CERTIFICATE, KEY = "user.crt", "user.key"


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


def jaas(username: str, password: str) -> str:
    """Return ``sasl.jaas.config`` for Kafka's Java clients.

    ``JaasConfig`` reads quotes and backslashes as Java's ``StreamTokenizer`` does.
    """
    name, word = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (username, password))
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{name}" password="{word}";'
