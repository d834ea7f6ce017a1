"""What a Secret holds under the keys that are asked of it, as text."""

import base64
import binascii
from collections.abc import Iterable

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError, NotFound
from tidemark_operator.kube.kinds import SECRET


class SecretProblem(Exception):
    """It cannot be used; the message goes into a condition and says what to do."""


async def read_secret(
    api: KubeApi, namespace: str, name: str, keys: Iterable[str]
) -> dict[str, str]:
    """By key, all of them. Raises :class:`SecretProblem`."""
    keys = tuple(keys)
    try:
        secret = await api.get(SECRET, namespace, name)
    except NotFound as error:
        raise SecretProblem(
            f"Secret {name} does not exist: make it with the keys {' and '.join(keys)}"
        ) from error
    except KubeError as error:
        raise SecretProblem(f"Secret {name} cannot be read: {error}") from error
    data = secret.get("data") or {}
    return {key: _decoded(data, name, key) for key in keys}


def _decoded(data: dict[str, str], secret: str, key: str) -> str:
    try:
        return base64.b64decode(data[key], validate=True).decode("utf-8")
    except KeyError as error:
        raise SecretProblem(f"Secret {secret} has no key {key}: add it") from error
    except (binascii.Error, ValueError) as error:
        raise SecretProblem(f"key {key} of Secret {secret} is no text") from error
