"""Fresh buckets of a running server of S3, as the configuration of a tier."""

import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from minio import Minio

from tidemark.tier.stores.s3_config import S3Config


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


def two_buckets(server: Any) -> S3Config:
    """Return the configuration of two fresh buckets."""
    found = [fresh_bucket(server) for _ in range(2)]
    buckets = [name for s3 in found for name in s3["buckets"]]
    return S3Config.parse({**found[0], "buckets": buckets, "prefix": "some/prefix"})


def administrator(s3: dict[str, Any]) -> Minio:
    """A client of the store with such a configuration."""
    return Minio(
        urlsplit(s3["endpoint"]).netloc,
        access_key=s3["accessKeyId"],
        secret_key=s3["secretAccessKey"],
        secure=False,
    )


def only_without(denied: Sequence[str], bucket: str, account: str = "") -> dict[str, Any]:
    """Return a policy that allows everything in a bucket but some actions.

    ``account``: to whom it applies; none for the policy of a session.
    """
    whom = {"Principal": {"AWS": [account]}} if account else {}
    places = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    allow = {"Effect": "Allow", "Action": ["s3:*"], "Resource": places, **whom}
    return {
        "Version": "2012-10-17",
        "Statement": [
            allow,
            *(
                {
                    "Effect": "Deny",
                    "Action": [action],
                    # Rights to a bucket, or to objects.
                    "Resource": [places["Bucket" not in action]],
                    **whom,
                }
                for action in denied
            ),
        ],
    }
