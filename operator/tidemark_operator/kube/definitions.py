"""Whether the definition of one of our kinds is being deleted, and all of its objects with it.

The operator's account has no right to read CustomResourceDefinitions, which belong to no namespace.
The API server shows it all the same. While a definition is terminating it refuses to create objects
of the kind with 405 ("create not allowed while custom resource definition is terminating",
``customresource_handler.go`` of apiextensions-apiserver), before it looks at the object. Once the
definition is gone the path is unknown. So the operator requests a creation that cannot succeed: a
dry run of an object without a spec.
"""

import enum

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Forbidden, Invalid, KubeError, NotFound
from tidemark_operator.kube.kinds import Json, Kind

_NAME = "is-the-kind-served"
_TERMINATING = 405
#: How RBAC's refusal ends; admission and a namespace that is terminating say something else.
_NO_RIGHT = "cannot create resource"


class Definition(enum.Enum):
    """What is known of a kind's definition."""

    SERVED = enum.auto()
    LEAVING = enum.auto()
    UNKNOWN = enum.auto()


async def look_at_definition(api: KubeApi, kind: Kind, namespace: str) -> Definition:
    """Return whether the kind stays. Raises ``KubeError`` where the API server does not say."""
    body: Json = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": _NAME, "namespace": namespace},
    }
    try:
        await api.create(kind, namespace, body, dry_run=True)
    except NotFound as error:
        # A namespace that does not exist is another 404; then nothing of ours exists, either.
        return Definition.SERVED if "namespaces" in error.said else Definition.LEAVING
    except Forbidden as error:
        return Definition.UNKNOWN if _NO_RIGHT in error.message else Definition.SERVED
    except Invalid:
        return Definition.SERVED
    except KubeError as error:
        if error.status == _TERMINATING:
            return Definition.LEAVING
        raise
    return Definition.SERVED
