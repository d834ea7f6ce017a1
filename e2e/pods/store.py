"""Contents of a run's object store, as listed by a client beside the pods.

docs/reference/tier-format.md describes the keys.
"""

from typing import Any

from e2e.pods.objects import BUCKET, KEYS, STORE_ENDPOINT
from tidemark.tier.stores.s3 import S3Store
from tidemark.tier.stores.s3_config import S3Config


def segment_objects(topic: dict[str, Any]) -> list[str]:
    """Below the folder of a Topic's data, the objects with its records: ``<partition>/<start>-…``.
    Raises StoreError."""
    config = S3Config(
        buckets=(BUCKET,),
        access_key_id=KEYS["accessKeyId"],
        secret_access_key=KEYS["secretAccessKey"],
        endpoint=STORE_ENDPOINT,
    )
    folder = f"data/{topic['metadata']['name']}-{topic['status']['topicId']}/"
    return [info.key.removeprefix(folder) for info in S3Store(config).list(folder)]


def segment_starts(topic: dict[str, Any], partition: int) -> list[int]:
    """The first offsets of a partition's segments. Raises StoreError."""
    found = [key.split("/") for key in segment_objects(topic)]
    return sorted({int(name.partition("-")[0]) for part, name in found if int(part) == partition})
