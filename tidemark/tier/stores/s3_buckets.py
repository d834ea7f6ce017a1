"""Check that the buckets of an S3 exist, and creation of those that a manifest requests.

``obstore`` cannot create buckets, so that needs ``minio`` (the extra ``operator``). Existence is
checked through ``obstore``, whose time-outs cover a whole answer: any server may be at the address.
"""

import logging
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.credentials.providers import StaticProvider
from minio.error import MinioException, S3Error

from tidemark.reasons import Reason
from tidemark.tier.stores.objects import StoreUnavailable
from tidemark.tier.stores.s3 import S3Store
from tidemark.tier.stores.s3_config import S3Config

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0


def ensure_buckets(config: S3Config, *, create: bool, in_use: bool) -> None:
    """Check that every bucket exists, and create missing ones if ``create``.

    The first has the metadata: it is never created for a store ``in_use``. Blocks; raises
    StoreUnavailable.
    """
    for bucket in config.buckets:
        if _exists(config, bucket):
            continue
        if in_use and bucket == config.buckets[0]:
            raise _missing(f"bucket {bucket} does not exist any more")
        if not create:
            raise _missing(f"bucket {bucket} does not exist: make it, or set createBuckets: true")
        _make(config, bucket)


def _exists(config: S3Config, bucket: str) -> bool:
    try:
        S3Store(config, bucket).probe()
    except StoreUnavailable as error:
        if error.reason == Reason.BUCKET_MISSING:
            return False
        raise
    return True


def _make(config: S3Config, bucket: str) -> None:
    try:
        _client(config).make_bucket(bucket_name=bucket, location=config.region)
    except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
        code = error.code if isinstance(error, S3Error) else type(error).__name__
        raise StoreUnavailable(
            f"bucket {bucket} cannot be made: {code}",
            reason=Reason.STORE_ACCESS_DENIED,
            retriable=True,
        ) from error
    logger.info("made bucket %s", bucket)


def _missing(message: str) -> StoreUnavailable:
    return StoreUnavailable(message, reason=Reason.BUCKET_MISSING, retriable=True)


def _client(config: S3Config) -> Minio:
    endpoint = urlsplit(config.endpoint or f"https://s3.{config.region}.amazonaws.com")
    pool = urllib3.PoolManager(timeout=urllib3.Timeout(total=TIMEOUT_S), retries=urllib3.Retry(1))
    return Minio(
        endpoint=endpoint.netloc,
        credentials=StaticProvider(config.access_key_id, config.secret_access_key),
        secure=endpoint.scheme == "https",
        region=config.region,
        http_client=pool,
    )
