"""Secrets that a manifest names: read only if their owner offers them to that kind of object.

The operator may read all Secrets of its namespace. A person who may write an Export, a User or a
Cluster may not be allowed to read any. So the operator uses a Secret for a manifest only if the
Secret has the annotation ``tidemark.dev/offered-to``: a person who can write that annotation can
read the Secret anyway. The operator's own Secrets are never used, whatever their annotations say.
"""

import base64
import binascii
import enum
from collections.abc import Collection, Iterable

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError, NotFound
from tidemark_operator.kube.kinds import SECRET, Json
from tidemark_operator.resources.names import GROUP, MANAGED_BY_LABEL, OFFERED_ANNOTATION, OPERATOR


class OfferedTo(enum.StrEnum):
    """Values of the annotation: kinds of objects that may name the Secret. Brokers belong to the
    owner of their Cluster, so they may name Secrets that are offered to Clusters."""

    CLUSTER = "Cluster"
    EXPORT = "Export"
    USER = "User"


class SecretProblem(Exception):
    """A Secret that cannot be used; the message goes into a condition and says what to do."""


class SecretMissing(SecretProblem):
    """There is no Secret of that name."""


class SecretNotOffered(SecretProblem):
    """The Secret exists, and its owner does not offer it."""


def offers(secret: Json) -> list[str]:
    """Return the values of the Secret's annotation."""
    text = (secret["metadata"].get("annotations") or {}).get(OFFERED_ANNOTATION, "")
    return [value for part in str(text).split(",") if (value := part.strip())]


def is_operators_own(secret: Json) -> bool:
    """Return whether the operator created the Secret: by its label, or by an owner of our kinds."""
    meta = secret["metadata"]
    owners = meta.get("ownerReferences") or ()
    return (meta.get("labels") or {}).get(MANAGED_BY_LABEL) == OPERATOR or any(
        str(owner.get("apiVersion", "")).startswith(f"{GROUP}/") for owner in owners
    )


async def offered_secret(api: KubeApi, namespace: str, name: str, to: OfferedTo) -> Json:
    """Return a Secret if its owner offers it to objects of one kind.

    An owner offers a Secret by an annotation, so that the author of a manifest cannot read any
    Secret of the namespace through the operator. Raises :class:`SecretMissing`,
    :class:`SecretNotOffered` or ``KubeError``.
    """
    # Both errors have the same text, so that authors of manifests cannot find out which Secrets
    # exist.
    try:
        secret = await api.get(SECRET, namespace, name)
    except NotFound as error:
        raise SecretMissing(_not_offered(namespace, name, (), to)) from error
    # The operator's own Secrets contain keys of authorities and other users' passwords.
    if is_operators_own(secret):
        raise SecretNotOffered(
            f"Secret {name} belongs to the operator and cannot be used. Name another Secret."
        )
    found = offers(secret)
    if to not in found:
        raise SecretNotOffered(_not_offered(namespace, name, found, to))
    return secret


def _not_offered(namespace: str, name: str, offered: Iterable[str], to: OfferedTo) -> str:
    """Return one message for a Secret that does not exist and for one that is not offered: naming a
    Secret must not reveal whether it exists."""
    value = ",".join([*offered, to])
    overwrite = "--overwrite " if "," in value else ""
    return (
        f"Secret {name} does not exist or is not offered to {to} objects. Create it, or have its "
        f"owner offer it: kubectl --namespace {namespace} annotate {overwrite}secret {name} "
        f"{OFFERED_ANNOTATION}={value}"
    )


async def read_secret(
    api: KubeApi,
    namespace: str,
    name: str,
    keys: Iterable[str],
    to: OfferedTo,
    *,
    optional: Collection[str] = (),
) -> dict[str, str]:
    """Return the values of ``keys`` as text, all of them except missing ``optional`` ones.

    Raises :class:`SecretProblem`.
    """
    try:
        secret = await offered_secret(api, namespace, name, to)
    except KubeError as error:
        raise SecretProblem(f"Secret {name} cannot be read: {error}") from error
    data = secret.get("data") or {}
    # An optional key that exists must be valid, too.
    present = [key for key in keys if key in data or key not in optional]
    return {key: _decoded(data, name, key) for key in present}


def _decoded(data: dict[str, str], secret: str, key: str) -> str:
    try:
        return base64.b64decode(data[key], validate=True).decode("utf-8")
    except KeyError as error:
        raise SecretProblem(f"Secret {secret} has no key {key}. Add it") from error
    except (binascii.Error, ValueError) as error:
        raise SecretProblem(f"key {key} of Secret {secret} is not valid text") from error
