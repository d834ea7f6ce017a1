"""Whether the buckets of an S3 exist, and making those of a store that was never used.

``obstore`` moves objects and knows no buckets, so this needs ``minio`` (the extra ``operator``).
"""

import logging
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.credentials.providers import StaticProvider
from minio.error import MinioException

from tidemark.tier.objects import StoreUnavailable
from tidemark.tier.s3_config import S3Config

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0


def ensure_buckets(config: S3Config, *, create: bool) -> None:
    """Every bucket exists; for a store in use (``create`` False) the first, if it is missing, is a
    problem and never made anew. Blocks; raises StoreUnavailable."""
    client = _client(config)
    for bucket in config.buckets:
        try:
            if client.bucket_exists(bucket_name=bucket):
                continue
            if not create and bucket == config.buckets[0]:
                raise StoreUnavailable(
                    f"bucket {bucket} is gone", reason="BucketMissing", retriable=True
                )
            client.make_bucket(bucket_name=bucket, location=config.region)
            logger.info("made bucket %s", bucket)
        except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreUnavailable(
                f"bucket {bucket} at {config.endpoint or 'AWS'}: {error}",
                reason="RemoteStorageUnavailable",
                retriable=True,
            ) from error


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
