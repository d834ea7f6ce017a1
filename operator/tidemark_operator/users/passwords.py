"""Passwords: made by the operator, or read from a Secret that a manifest names.

A ``User`` makes the operator read a Secret and copy a value of it. So the operator reads only a
Secret that its owner offers to Users. It refuses types that Kubernetes or other programs fill with
credentials, and values that are not one line of text.
"""

import base64
import secrets
import string

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.secrets import OfferedTo, SecretProblem, offered_secret

LENGTH = 32
BYTES_MAX = 1024
_ALPHABET = string.ascii_letters + string.digits
_TYPES = ("", "Opaque", "kubernetes.io/basic-auth")


class BadPassword(Exception):
    """The password cannot be used; the text says what to do, and nothing of the password."""


def make() -> str:
    """A new password: 32 letters and digits, 190 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(LENGTH))


async def read(api: KubeApi, namespace: str, name: str, key: str) -> str:
    """The password that a Secret holds. Raises :class:`BadPassword`, ``KubeError``."""
    try:
        body = await offered_secret(api, namespace, name, OfferedTo.USER)
    except SecretProblem as error:
        raise BadPassword(str(error)) from error
    type_ = str(body.get("type") or "")
    if type_ not in _TYPES:
        raise BadPassword(f"Secret {name} has type {type_}. Use one of type Opaque")
    text = (body.get("data") or {}).get(key)
    if text is None:
        raise BadPassword(f"Secret {name} has no key {key}. Add it")
    return checked(base64.b64decode(text), f"key {key} of Secret {name}")


def checked(raw: bytes, where: str) -> str:
    """The password of some bytes. Raises :class:`BadPassword`."""
    try:
        password = raw.decode()
    except UnicodeDecodeError:
        raise BadPassword(f"{where} is not UTF-8 text") from None  # the cause shows its bytes
    if not 0 < len(raw) <= BYTES_MAX:
        raise BadPassword(f"{where} has {len(raw)} bytes, but a password has 1 to {BYTES_MAX}")
    if not password.isprintable():
        raise BadPassword(
            f"{where} contains a line break or another control character. Store "
            "only the password (printf, not echo)"
        )
    return password
