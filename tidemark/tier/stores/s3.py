"""The object store as a bucket of any S3 (MinIO is the reference).

Most operations are those of :class:`BucketStore`. Deletes and unfinished uploads are S3's own,
because ``obstore`` reports too little about them.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from obstore.store import S3Store as _Bucket

from tidemark.reasons import Reason

if TYPE_CHECKING:
    from obstore.store import S3Config as _Config

from tidemark.tier.stores.bucket import (
    NO_ANSWER,
    OTHER_SERVER,
    BucketStore,
    Dialect,
    ErrorAdvice,
    client_options,
    retry_config,
)
from tidemark.tier.stores.objects import UnfinishedUpload
from tidemark.tier.stores.s3_config import S3Config
from tidemark.tier.stores.s3_requests import (
    KEYS_AT_ONCE,
    BulkDeleteRefused,
    abort_upload,
    delete_object,
    delete_objects,
    unfinished_uploads,
)

logger = logging.getLogger(__name__)

#: Refusals after which this process no longer tries DeleteObjects.
_REFUSALS_MAX = 3


class S3Store(BucketStore):
    """One bucket (by default the first) of an S3 configuration."""

    def __init__(self, config: S3Config, bucket: str | None = None) -> None:
        self._config = config
        self._name = config.buckets[0] if bucket is None else bucket
        prefix = f", prefix {config.prefix}" if config.prefix else ""
        where = f"bucket {self._name} at {config.endpoint or 'AWS ' + config.region}{prefix}"
        super().__init__(_S3, partial(_open, config, self._name), where)
        self._refusals = 0
        self._deletes_singly = False

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Yield multipart uploads below the prefix."""
        return unfinished_uploads(self._config, self._name)

    def abort(self, upload: UnfinishedUpload) -> None:
        """Drop the parts of an upload (AbortMultipartUpload)."""
        abort_upload(self._config, self._name, upload)

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


def _open(config: S3Config, bucket: str, request_s: int) -> _Bucket:
    """Open a bucket through ``obstore``.

    ``request_s``: time limit of each attempt of a request, and of the time in which to retry.
    """
    # With an endpoint of its own the bucket is in the path: a name in the host would need DNS for
    # it.
    endpoint: _Config = {"endpoint": config.endpoint} if config.endpoint else {}
    return _Bucket(
        bucket,
        prefix=config.prefix.strip("/") or None,
        config={
            "access_key_id": config.access_key_id,
            "secret_access_key": config.secret_access_key,
            "region": config.region,
            "virtual_hosted_style_request": not config.endpoint,
            **endpoint,
        },
        client_options=client_options(config.endpoint, request_s),
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
        frozenset({"NotImplemented", "501"}),
        Reason.STORE_NOT_IMPLEMENTED,
        "the store does not implement a request that Tidemark needs (conditional writes, listing, "
        "multipart uploads): use another store or version",
        False,
    ),
    ErrorAdvice(
        frozenset({OTHER_SERVER}),
        Reason.STORE_NOT_S3,
        "what answers there is not an S3: correct the endpoint",
        False,
    ),
    ErrorAdvice(
        frozenset({NO_ANSWER}),
        Reason.STORE_UNREACHABLE,
        "the endpoint does not answer: check that it runs, its address and the network",
        True,
    ),
)

_S3 = Dialect(
    compared="e_tag",
    advice=_ERROR_ADVICE,
    keys_at_once=KEYS_AT_ONCE,
)
