"""The Cluster's remote storage: from the manifest to what brokers are given.

Accepting a storage means: the credentials are readable, the buckets exist (missing ones are made
for a store that was never used), and the store's identity object is ours; then the location and the
store's id are written into the Cluster's status. From then on another identity, or none, means
unavailable, and another location is refused while topics have data in the old one. Credentials
reach brokers over the control connection only and are written nowhere.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.tier.config import credential_names, ensure_place, from_json, location_of
from tidemark.tier.config_fields import InvalidConfig
from tidemark.tier.identity import ensure_identity
from tidemark.tier.objects import StoreUnavailable
from tidemark.tier.open import open_store
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError, NotFound
from tidemark_operator.kube.kinds import SECRET, Json

CHECK_TIMEOUT_S = 30.0


class RemoteStorageProblem(Exception):
    """The storage cannot be used; the message goes into a condition and says what to do."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A storage that may be used: what brokers are given, what the status records."""

    text: str
    location: Json
    store_id: str


async def resolve(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> str:
    """The JSON for the brokers, with the Secret's credentials. Raises
    :class:`RemoteStorageProblem`."""
    ((kind, fields),) = (location_of(spec) or {}).items()
    names = credential_names(spec)
    keys = await _credentials(api, namespace, spec[kind], names) if names else {}
    return json.dumps({kind: {**fields, **keys}}, sort_keys=True)


async def _credentials(
    api: KubeApi, namespace: str, section: Mapping[str, Any], names: Sequence[str]
) -> dict[str, str]:
    name = str(section["credentialsSecretRef"]["name"])
    try:
        secret = await api.get(SECRET, namespace, name)
    except NotFound as error:
        raise RemoteStorageProblem(
            f"Secret {name} does not exist: make it with the keys {' and '.join(names)}"
        ) from error
    except KubeError as error:
        raise RemoteStorageProblem(f"Secret {name} cannot be read: {error}") from error
    data = secret.get("data") or {}
    return {key: _decoded(data, name, key) for key in names}


def _decoded(data: Mapping[str, str], secret: str, key: str) -> str:
    try:
        return base64.b64decode(data[key], validate=True).decode("utf-8")
    except KeyError as error:
        raise RemoteStorageProblem(f"Secret {secret} has no key {key}: add it") from error
    except (binascii.Error, ValueError) as error:
        raise RemoteStorageProblem(f"key {key} of Secret {secret} is no text") from error


async def accept(text: str, location: Json, *, cluster_id: str, expected_store_id: str) -> Accepted:
    """Reach the store and check, or make, its identity; in a thread, within a time limit. Raises
    :class:`RemoteStorageProblem`."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            store_id = await asyncio.to_thread(_check, text, cluster_id, expected_store_id)
    except TimeoutError as error:
        raise RemoteStorageProblem(
            f"the store did not answer in {CHECK_TIMEOUT_S:.0f} s"
        ) from error
    except (StoreUnavailable, InvalidConfig) as error:
        raise RemoteStorageProblem(str(error)) from error
    return Accepted(text, location, store_id)


def _check(text: str, cluster_id: str, expected_store_id: str) -> str:
    config = from_json(text)
    ensure_place(config, create=not expected_store_id)
    return ensure_identity(open_store(config), cluster_id, expected_store_id)
