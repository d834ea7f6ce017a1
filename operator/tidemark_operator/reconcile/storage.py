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
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.credentials.providers import StaticProvider
from minio.error import MinioException

from tidemark.tier.identity import ensure_identity
from tidemark.tier.objects import StoreUnavailable
from tidemark.tier.open import InvalidConfig, RemoteStorageConfig, open_store
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError, NotFound
from tidemark_operator.kube.kinds import SECRET, Json
from tidemark_operator.resources.names import SECRET_ACCESS_KEY_ID, SECRET_SECRET_ACCESS_KEY

logger = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 30.0
BUCKET_TIMEOUT_S = 5.0


class StorageProblem(Exception):
    """The storage cannot be used; the message goes into a condition and says what to do."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A storage that may be used: what brokers are given, what the status records."""

    text: str
    location: Json
    store_id: str


def location_of(spec: Mapping[str, Any] | None) -> Json | None:
    """What the status records of ``spec.remoteStorage``: everything but the credentials."""
    if not spec:
        return None
    if spec.get("filesystem"):
        return {"filesystem": {"path": spec["filesystem"]["path"]}}
    s3 = spec["s3"]
    names = ("endpoint", "region", "buckets", "prefix")
    return {"s3": {name: s3[name] for name in names if s3.get(name)}}


def moved(old: Json, new: Json) -> str:
    """Why ``new`` is not the same store as ``old``; "" when it is (buckets may be added)."""
    if ("s3" in old) != ("s3" in new):
        return "the kind of storage changed"
    if "filesystem" in old:
        same = old["filesystem"]["path"] == new["filesystem"]["path"]
        return "" if same else "filesystem.path changed"
    for name in ("endpoint", "prefix"):
        if old["s3"].get(name) != new["s3"].get(name):
            return f"s3.{name} changed"
    kept, wanted = list(old["s3"]["buckets"]), list(new["s3"]["buckets"])
    if not set(kept) <= set(wanted):
        return f"bucket {sorted(set(kept) - set(wanted))[0]} was dropped"
    if kept[0] != wanted[0]:
        return f"bucket {kept[0]} holds the metadata and has to stay the first"
    return ""


async def resolve(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> str:
    """The JSON for the brokers, credentials from the Secret. Raises :class:`StorageProblem`."""
    place = location_of(spec) or {}
    if "filesystem" in place:
        return json.dumps(place, sort_keys=True)
    name = str(spec["s3"]["credentialsSecretRef"]["name"])
    try:
        secret = await api.get(SECRET, namespace, name)
    except NotFound as error:
        raise StorageProblem(
            f"Secret {name} does not exist: make it with the keys {SECRET_ACCESS_KEY_ID} and "
            f"{SECRET_SECRET_ACCESS_KEY}"
        ) from error
    except KubeError as error:
        raise StorageProblem(f"Secret {name} cannot be read: {error}") from error
    data = secret.get("data") or {}
    keys = {
        "accessKeyId": _decoded(data, name, SECRET_ACCESS_KEY_ID),
        "secretAccessKey": _decoded(data, name, SECRET_SECRET_ACCESS_KEY),
    }
    return json.dumps({"s3": {**place["s3"], **keys}}, sort_keys=True)


def _decoded(data: Mapping[str, str], secret: str, key: str) -> str:
    try:
        return base64.b64decode(data[key], validate=True).decode("utf-8")
    except KeyError as error:
        raise StorageProblem(f"Secret {secret} has no key {key}: add it") from error
    except (binascii.Error, ValueError) as error:
        raise StorageProblem(f"key {key} of Secret {secret} is no text") from error


async def accept(text: str, location: Json, *, cluster_id: str, expected_store_id: str) -> Accepted:
    """Reach the store and check, or make, its identity; in a thread, within a time limit. Raises
    :class:`StorageProblem`."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            store_id = await asyncio.to_thread(_check, text, cluster_id, expected_store_id)
    except TimeoutError as error:
        raise StorageProblem(f"the store did not answer in {CHECK_TIMEOUT_S:.0f} s") from error
    except (StoreUnavailable, InvalidConfig) as error:
        raise StorageProblem(str(error)) from error
    return Accepted(text, location, store_id)


def _check(text: str, cluster_id: str, expected_store_id: str) -> str:
    config = RemoteStorageConfig.from_json(text)
    if config.s3 is not None:
        _ensure_buckets(json.loads(text)["s3"], create=not expected_store_id)
    return ensure_identity(open_store(config), cluster_id, expected_store_id)


def _ensure_buckets(s3: Mapping[str, Any], *, create: bool) -> None:
    """Every bucket exists; for a store in use a missing one is a problem, never made anew."""
    client = _client(s3)
    for bucket in s3["buckets"]:
        try:
            if client.bucket_exists(bucket_name=bucket):
                continue
            if not create and bucket == s3["buckets"][0]:
                raise StoreUnavailable(
                    f"bucket {bucket} is gone", reason="BucketMissing", retriable=True
                )
            client.make_bucket(bucket_name=bucket, location=s3.get("region"))
            logger.info("made bucket %s", bucket)
        except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreUnavailable(
                f"bucket {bucket} at {s3.get('endpoint') or 'AWS'}: {error}",
                reason="RemoteStorageUnavailable",
                retriable=True,
            ) from error


def _client(s3: Mapping[str, Any]) -> Minio:
    endpoint = urlsplit(s3.get("endpoint") or f"https://s3.{s3['region']}.amazonaws.com")
    pool = urllib3.PoolManager(
        timeout=urllib3.Timeout(total=BUCKET_TIMEOUT_S), retries=urllib3.Retry(1)
    )
    return Minio(
        endpoint=endpoint.netloc,
        credentials=StaticProvider(s3["accessKeyId"], s3["secretAccessKey"]),
        secure=endpoint.scheme == "https",
        region=s3.get("region"),
        http_client=pool,
    )
