"""The object store as a bucket of Google Cloud Storage.

``obstore`` speaks its XML API. A conditional write compares the object's generation, a number that
every write changes. Deletes are single requests, ten at a time.

Cloud Storage keeps the parts of a broken multipart upload until they are aborted. ``obstore`` does
not list them, so only a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes them.
"""

from typing import TYPE_CHECKING

from obstore.store import GCSStore

from tidemark.reasons import Reason
from tidemark.tier.stores.bucket import (
    CLOCK_SKEWED,
    OTHER_SERVER,
    BucketStore,
    Dialect,
    ErrorAdvice,
    client_options,
    retry_config,
)
from tidemark.tier.stores.gcs_config import GcsConfig

if TYPE_CHECKING:
    from obstore.store import GCSConfig as _Config

_GCS = Dialect(
    compared="version",
    keys_at_once=100,
    # The token service's words about a clock that is wrong.
    phrases={"in a reasonable timeframe": CLOCK_SKEWED},
    advice=(
        ErrorAdvice(
            frozenset({"NoSuchBucket"}),
            Reason.BUCKET_MISSING,
            "the bucket does not exist: create it, or correct the name",
            False,
        ),
        ErrorAdvice(
            frozenset({"AccessDenied", "AuthenticationRequired", "401", "403"}),
            Reason.STORE_ACCESS_DENIED,
            "access is denied: grant the service account the role Storage Object User on the "
            "bucket, or correct the key (of a Cluster, in the Secret that credentialsSecretRef "
            "names)",
            False,
        ),
        ErrorAdvice(
            frozenset({OTHER_SERVER}),
            Reason.STORE_ERROR,
            "what answers there is not Google Cloud Storage: correct the endpoint",
            False,
        ),
    ),
)


def gcs_store(config: GcsConfig, bucket: str) -> BucketStore:
    """Return the store of one bucket; nothing is connected yet."""

    def open_bucket(request_s: int) -> GCSStore:
        # Without a key ``obstore`` takes application default credentials: a file that
        # GOOGLE_APPLICATION_CREDENTIALS names, else the metadata server of the machine or pod.
        key: _Config = (
            {"service_account_key": config.service_account_key}
            if config.service_account_key
            else {}
        )
        return GCSStore(
            bucket,
            prefix=config.prefix or None,
            # The address is always explicit, as the JSON of a service account may name another.
            config={"base_url": config.address, **key},
            client_options=client_options(config.address, request_s),
            retry_config=retry_config(request_s),
        )

    prefix = f", prefix {config.prefix}" if config.prefix else ""
    at = config.endpoint or "Google Cloud Storage"
    return BucketStore(_GCS, open_bucket, f"bucket {bucket} at {at}{prefix}")
