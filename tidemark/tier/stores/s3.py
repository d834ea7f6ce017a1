"""The object store as a bucket of any S3 (MinIO is the reference).

Most operations are those of :class:`BucketStore`. Deletes and unfinished uploads are S3's own,
because ``obstore`` reports too little about them. All requests use the same credentials.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from obstore.store import S3Store as _Bucket

from tidemark.reasons import Reason

if TYPE_CHECKING:
    from obstore import Attributes
    from obstore.store import S3Config as _Config

from tidemark.tier.stores.bucket import (
    OTHER_SERVER,
    BucketStore,
    Dialect,
    ErrorAdvice,
    answer_codes,
    client_options,
    retry_config,
)
from tidemark.tier.stores.objects import StoreUnavailable, UnfinishedUpload
from tidemark.tier.stores.s3_config import SSE_KMS, SSE_S3, S3Config
from tidemark.tier.stores.s3_credentials import provider_of
from tidemark.tier.stores.s3_requests import (
    KEYS_AT_ONCE,
    BulkDeleteRefused,
    abort_upload,
    create_bucket,
    delete_object,
    delete_objects,
    unfinished_uploads,
)

logger = logging.getLogger(__name__)

#: Refusals after which this process no longer tries DeleteObjects.
_REFUSALS_MAX = 3
_ENCRYPTIONS = {SSE_S3: "AES256", SSE_KMS: "aws:kms"}
#: Codes for temporary credentials that are no longer valid.
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_Result = TypeVar("_Result")


class S3Store(BucketStore):
    """One bucket (by default the first) of an S3 configuration."""

    def __init__(self, config: S3Config, bucket: str | None = None) -> None:
        self._config = config
        self._name = config.buckets[0] if bucket is None else bucket
        prefix = f", prefix {config.prefix}" if config.prefix else ""
        where = f"bucket {self._name} at {config.endpoint or 'AWS ' + config.region}{prefix}"
        # Metadata is read and replaced often: only segments have another class.
        attributes: Attributes | None = (
            {"Storage-Class": config.storage_class} if config.storage_class else None
        )
        super().__init__(_S3, partial(_open, config, self._name), where, attributes)
        self._credentials = provider_of(config)
        self._refusals = 0
        self._deletes_singly = False

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Yield multipart uploads below the prefix."""
        return unfinished_uploads(self._config, self._name)

    def abort(self, upload: UnfinishedUpload) -> None:
        """Drop the parts of an upload (AbortMultipartUpload)."""
        abort_upload(self._config, self._name, upload)

    def _call(
        self, key: str, operation: Callable[[str], _Result], *, once: bool = False
    ) -> _Result:
        # Fetch them here, because ``obstore`` would report a failure in its own words.
        credentials = self._credentials.current()
        try:
            return super()._call(key, operation, once=once)
        except StoreUnavailable as error:
            if (
                isinstance(error.__cause__, Exception)
                and answer_codes(_S3, error.__cause__) & _EXPIRED
            ):
                self._credentials.reject(credentials)
            # Credentials may have expired meanwhile: then this raises why there are no others.
            self._credentials.current()
            raise

    def _delete(self, path: str) -> None:
        delete_object(self._config, self._name, path)

    def _delete_in_bulk(self, keys: Sequence[str]) -> Collection[str]:
        """Delete keys by one DeleteObjects; return those that remain to be deleted one by one."""
        if self._deletes_singly:
            return keys
        try:
            return self._call("", lambda _: delete_objects(self._config, self._name, keys))
        except BulkDeleteRefused as error:
            self._refusals += 1
            # One key may cause the refusal of a request. After several refusals the store does not
            # have DeleteObjects.
            self._deletes_singly = self._refusals >= _REFUSALS_MAX
            logger.info("%s: %s; deleted one by one", self.describe(), error)
            return keys


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
            raise _missing(f"bucket {bucket} does not exist: create it, or set createBuckets: true")
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
        create_bucket(config, bucket)
    except OSError as error:
        raise StoreUnavailable(
            f"bucket {bucket} cannot be created: {str(error)[:300]}",
            reason=Reason.STORE_ACCESS_DENIED,
            retriable=True,
        ) from error
    logger.info("created bucket %s", bucket)


def _missing(message: str) -> StoreUnavailable:
    return StoreUnavailable(message, reason=Reason.BUCKET_MISSING, retriable=True)


def _open(config: S3Config, bucket: str, request_s: int) -> _Bucket:
    """Open a bucket through ``obstore``.

    ``request_s``: time limit of each attempt of a request, and of the time in which to retry.
    """
    origin, path = config.address(bucket)
    options: _Config = {
        "region": config.region,
        # Always explicit: ``obstore`` reads AWS's variables for what is missing.
        "endpoint": origin,
        "virtual_hosted_style_request": not path,
    }
    if config.encryption:
        options["server_side_encryption"] = _ENCRYPTIONS[config.encryption]
    if config.kms_key_id:
        options["sse_kms_key_id"] = config.kms_key_id
    client = client_options(config.endpoint, request_s)
    if config.ca:
        # In addition to the system's authorities.
        client["root_certificate"] = config.ca
    return _Bucket(
        bucket,
        prefix=config.prefix.strip("/") or None,
        config=options,
        # The same identity as that of the requests that ``obstore`` does not send.
        credential_provider=provider_of(config).for_obstore,
        client_options=client,
        retry_config=retry_config(request_s),
    )


_ERROR_ADVICE = (
    ErrorAdvice(
        frozenset({"NoSuchBucket"}),
        Reason.BUCKET_MISSING,
        "the bucket does not exist: create it, or correct the name",
        False,
    ),
    ErrorAdvice(
        frozenset(
            {
                "KMS.DisabledException",
                "KMS.KMSInvalidStateException",
                "KMS.NotFoundException",
                "kms:KeyNotFound",
            }
        ),
        Reason.STORE_ACCESS_DENIED,
        "the key of KMS cannot be used: correct kmsKeyId, or enable the key",
        False,
    ),
    ErrorAdvice(
        _EXPIRED,
        Reason.STORE_ACCESS_DENIED,
        "the temporary credentials have expired: they are fetched again, or have to be replaced "
        "(of a Cluster, in the Secret that credentialsSecretRef names)",
        True,
    ),
    ErrorAdvice(
        frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "401"}),
        Reason.STORE_ACCESS_DENIED,
        "the access key or secret is wrong: correct the credentials (of a Cluster, in the Secret "
        "that credentialsSecretRef names)",
        False,
    ),
    ErrorAdvice(
        frozenset({"AccessDenied", "403"}),
        Reason.STORE_ACCESS_DENIED,
        "access is denied: correct the credentials (of a Cluster, in the Secret that "
        "credentialsSecretRef names), or allow them to read, write, delete and list",
        False,
    ),
    ErrorAdvice(
        frozenset({"QuotaExceeded", "XMinioStorageFull", "507"}),
        Reason.STORE_FULL,
        "the store is full: make room",
        True,
    ),
    ErrorAdvice(
        frozenset({OTHER_SERVER}),
        Reason.STORE_NOT_S3,
        "the server is not an S3 store: correct the endpoint",
        False,
    ),
)

_S3 = Dialect(
    compared="e_tag",
    advice=_ERROR_ADVICE,
    keys_at_once=KEYS_AT_ONCE,
)
