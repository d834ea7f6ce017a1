"""Check whether the definition of one of our kinds is being deleted, with all of its objects.

A definition gets its ``deletionTimestamp`` before the first object of the kind is deleted, so a
later read shows it. The chart ``tidemark-base`` grants the right to read our definitions. Without
it the operator tries a creation that cannot succeed: a dry run of an object without a spec. While a
definition is terminating, the API server refuses that with 405 before it validates the object
("create not allowed while custom resource definition is terminating",
``customresource_handler.go`` of apiextensions-apiserver). It knows that from a watch that may
lag.
"""

import asyncio
import enum

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Forbidden, Invalid, KubeError, NotFound
from tidemark_operator.kube.kinds import Json, Kind

DEFINITION = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"
)
#: Longest lag of that watch; a comment in ``customresource_handler.go`` names 0.8 s.
LAG_S = 2.0
_NAME = "is-the-kind-served"
_TERMINATING = 405
#: In the message of a refusal by RBAC, but not by admission or a terminating namespace.
_NO_RIGHT = "cannot create resource"


class Definition(enum.Enum):
    """State of a kind's definition."""

    SERVED = enum.auto()
    LEAVING = enum.auto()
    UNKNOWN = enum.auto()


async def look_at_definition(api: KubeApi, kind: Kind, namespace: str) -> Definition:
    """Return the state of the kind's definition. Raises ``KubeError`` without a clear answer."""
    try:
        found = await api.get(DEFINITION, "", f"{kind.plural}.{kind.group}")
    except NotFound:
        # Objects of a kind without a definition are deleted with it.
        return Definition.LEAVING
    except Forbidden:
        # The dry run relies on the API server's watch, so give it time to see the deletion.
        await asyncio.sleep(LAG_S)
        return await _try_creation(api, kind, namespace)
    leaving = bool(found["metadata"].get("deletionTimestamp"))
    return Definition.LEAVING if leaving else Definition.SERVED


async def _try_creation(api: KubeApi, kind: Kind, namespace: str) -> Definition:
    """Return whether a kind's CRD is served or being deleted, by a creation with dry run.

    So the operator needs no permission to read CustomResourceDefinitions.
    """
    body: Json = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": _NAME, "namespace": namespace},
    }
    # The error shows how far the request got. Only a terminating CRD rejects creations with 405.
    try:
        await api.try_create(kind, namespace, body)
    except NotFound as error:
        # A namespace that does not exist is another 404; then nothing of ours exists, either.
        return Definition.SERVED if "namespaces" in error.server_message else Definition.LEAVING
    except Forbidden as error:
        return Definition.UNKNOWN if _NO_RIGHT in error.message else Definition.SERVED
    except Invalid:
        return Definition.SERVED
    except KubeError as error:
        if error.status == _TERMINATING:
            return Definition.LEAVING
        raise
    return Definition.SERVED
