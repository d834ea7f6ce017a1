"""A fresh bucket of a running MinIO, as the configuration of a tier."""

import uuid
from typing import Any
from urllib.parse import urlsplit

from minio import Minio


def fresh_bucket(server: Any) -> dict[str, Any]:
    """Return the ``remoteStorage.s3`` settings of a fresh bucket, keys included."""
    name = f"tier-{uuid.uuid4().hex[:12]}"
    s3 = {
        "endpoint": server.endpoint,
        "region": "us-east-1",
        "buckets": [name],
        "prefix": "p",
        "accessKeyId": server.access_key,
        "secretAccessKey": server.secret_key,
    }
    administrator(s3).make_bucket(name)
    return s3


def administrator(s3: dict[str, Any]) -> Minio:
    """A client of the store with such a configuration."""
    return Minio(
        urlsplit(s3["endpoint"]).netloc,
        access_key=s3["accessKeyId"],
        secret_key=s3["secretAccessKey"],
        secure=False,
    )
