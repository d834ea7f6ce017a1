"""The object store as a bucket of any S3 (MinIO is the reference), through ``obstore``.

``obstore`` retries inside, so a conditional write of ours that succeeded may come back as
PreconditionError or AlreadyExistsError; the manifest's commit id settles that. What matters here is
to tell absence from trouble: a missing bucket, a wrong key or an endpoint that does not answer must
never look like a missing object. Time-outs are short and explicit: a request takes at most
``REQUEST_S``, and no retry begins later than that after the first; a part of an upload has
``UPLOAD_S``. Ranges are read in parts, so that the size of a read never meets a time-out that was
meant for a silent server.
"""

import itertools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore import exceptions
from obstore.store import S3Store as _Bucket

from tidemark.reasons import Reason

if TYPE_CHECKING:
    from obstore.store import S3Config as _Config

from tidemark.tier.stores.objects import (
    OBJECT_BYTES_MAX,
    AlreadyExists,
    DeletesRefused,
    ObjectInfo,
    ObjectNotFound,
    ObjectTooLarge,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    UnfinishedUpload,
    Version,
    VersionedObject,
    check_key,
    check_prefix,
)
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

CONNECT_S = 3
REQUEST_S = 10
UPLOAD_S = 60
RETRIES = 4
_PART_BYTES = 8 << 20
_UPLOADS_AT_ONCE = 4
_LIST_CHUNK = 1000
#: Nothing of ours lies there, so the answer is short.
_NO_FOLDER = "probe"
#: Refusals after which this process no longer tries DeleteObjects.
_REFUSALS_MAX = 3
#: Single deletes refused in a row after which the store counts as failed.
_REFUSED_IN_A_ROW_MAX = 100
#: Reasons that may concern one key only; all others concern the store.
_OF_ONE_KEY = frozenset(
    {Reason.STORE_ERROR, Reason.STORE_ACCESS_DENIED, Reason.STORE_NOT_IMPLEMENTED}
)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_Result = TypeVar("_Result")


class S3Store:
    """One bucket (by default the first) of an S3 configuration."""

    def __init__(self, config: S3Config, bucket: str | None = None) -> None:
        self._config = config
        self._name = config.buckets[0] if bucket is None else bucket
        self._bucket = _open(config, self._name, REQUEST_S)
        # Parts of an upload need more time than other requests, and time-outs belong to a client.
        self._uploads = _open(config, self._name, UPLOAD_S)
        self._refusals = 0
        self._deletes_singly = False

    def get(self, key: str) -> VersionedObject:
        """Return the whole object."""
        result = self._call(key, lambda path: obstore.get(self._bucket, path))
        if result.meta["size"] > OBJECT_BYTES_MAX:
            raise ObjectTooLarge(key, self.describe(), result.meta["size"])
        # The size is known before the body is read, so a foreign object never fills the memory.
        data = self._call(key, lambda _: bytes(result.bytes()))
        return VersionedObject(data, self._version(key, result.meta["e_tag"]))

    def get_range(self, key: str, start: int, end_exclusive: int) -> bytes:
        """Return the bytes of the range, read in parts and cut off at the object's end."""
        parts: list[bytes] = []
        while start < end_exclusive:
            end = min(end_exclusive, start + _PART_BYTES)
            part = self._part(key, start, end)
            parts.append(part)
            # A short part is the end of the object: another request would only be refused.
            if len(part) < end - start:
                break
            start = end
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def put(self, key: str, data: bytes) -> None:
        """Write, over any existing object."""
        self._call(key, lambda path: obstore.put(self._bucket, path, data))

    def put_stream(self, key: str, parts: Iterable[bytes]) -> None:
        """Upload an object from parts, as they are produced.

        An object below the size of one part takes a single PUT, a larger one a multipart upload.
        Raises the iterator's own error if producing the parts fails.
        """
        stream = _Stream(parts)
        # A single PUT costs one request instead of three. Collecting one part shows whether it
        # suffices.
        first = b"".join(_at_least(stream, _PART_BYTES))
        source = first if len(first) < _PART_BYTES else itertools.chain((first,), stream)
        try:
            self._call(
                key,
                lambda path: obstore.put(
                    self._uploads,
                    path,
                    source,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_UPLOADS_AT_ONCE,
                ),
            )
        except StoreError:
            # The store's client wraps errors of the iterator: raise the original one.
            if stream.error is not None:
                raise stream.error from None
            raise

    def create(self, key: str, data: bytes) -> Version:
        """Write only if the key has no object (If-None-Match)."""
        result = self._call(key, lambda path: obstore.put(self._bucket, path, data, mode="create"))
        return self._version(key, result["e_tag"])

    def replace(self, key: str, data: bytes, expected: Version) -> Version:
        """Write only over the expected ETag (If-Match)."""
        result = self._call(
            key, lambda path: obstore.put(self._bucket, path, data, mode={"e_tag": expected})
        )
        return self._version(key, result["e_tag"])

    def delete(self, key: str) -> None:
        """Delete; a missing object is no error."""
        self._call(key, lambda path: delete_object(self._config, self._name, path))

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete by DeleteObjects requests, ``KEYS_AT_ONCE`` keys each.

        Keys that such a request refuses are deleted one by one, and so are all keys in a store that
        does not support it. Raises DeletesRefused with the keys that are still there, and
        StoreUnavailable for a failure that does not concern a single key.
        """
        refused: dict[str, str] = {}
        # A store that refuses many keys in a row refuses all: its error ends the call early.
        in_a_row = 0
        # First in bulk; the call returns the keys that still have to be deleted one by one.
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            chunk = [check_key(key) for key in keys[begin : begin + KEYS_AT_ONCE]]
            for key in self._delete_in_bulk(chunk):
                try:
                    self.delete(key)
                except StoreUnavailable as error:
                    in_a_row += 1
                    # Many refusals in a row mean a problem of the store, not of single keys.
                    if error.reason not in _OF_ONE_KEY or in_a_row > _REFUSED_IN_A_ROW_MAX:
                        raise
                    refused[key] = str(error)
                else:
                    in_a_row = 0
        if refused:
            raise DeletesRefused(self.describe(), refused)

    def _delete_in_bulk(self, keys: Sequence[str]) -> Collection[str]:
        """Delete keys in one request; return those that remain to be deleted one by one."""
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

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object in a folder and below it."""
        folder = check_prefix(prefix).rstrip("/") or None
        stream = self._call(
            "", lambda _: obstore.list(self._bucket, folder, chunk_size=_LIST_CHUNK)
        )
        chunks = iter(stream)
        while True:
            chunk = self._call("", lambda _: next(chunks, None))
            if chunk is None:
                return
            for meta in chunk:
                modified_ms = int(meta["last_modified"].timestamp() * 1000)
                yield ObjectInfo(meta["path"], meta["size"], modified_ms)

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Yield multipart uploads below the prefix."""
        return unfinished_uploads(self._config, self._name)

    def abort(self, upload: UnfinishedUpload) -> None:
        """Drop the parts of an upload (AbortMultipartUpload)."""
        abort_upload(self._config, self._name, upload)

    def probe(self) -> None:
        """Check that the bucket exists and may be listed, by one small request.

        Raises StoreUnavailable, with ``BucketMissing`` if the service has no such bucket.
        """
        self._call("", lambda _: obstore.list_with_delimiter(self._bucket, _NO_FOLDER))

    def describe(self) -> str:
        """Return ``bucket NAME at ENDPOINT`` for messages, without credentials."""
        prefix = f", prefix {self._config.prefix}" if self._config.prefix else ""
        return (
            f"bucket {self._name} at "
            f"{self._config.endpoint or 'AWS ' + self._config.region}{prefix}"
        )

    def _part(self, key: str, start: int, end: int) -> bytes:
        def read(path: str) -> bytes:
            return bytes(obstore.get_range(self._bucket, path, start=start, end=end))

        try:
            return self._call(key, read)
        except _RangeBeyondEnd:
            return b""

    def _version(self, key: str, e_tag: str | None) -> Version:
        if not e_tag:
            raise StoreUnavailable(
                f"{self.describe()} gives no ETag for {key}: Tidemark needs an S3 with conditional "
                "writes",
                reason=Reason.STORE_WITHOUT_ETAGS,
                retriable=False,
            )
        return Version(e_tag)

    def _call(self, key: str, operation: Callable[[str], _Result]) -> _Result:
        """Run one operation and translate its errors to those of the port."""
        # An empty key is for requests about the bucket itself.
        path = check_key(key) if key else key
        try:
            return operation(path)
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise _translate(self.describe(), key, error) from error


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
        client_options={
            # Plain HTTP only if the configuration says so.
            "allow_http": config.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "timeout": timedelta(seconds=request_s),
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=request_s),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=2),
                "base": 2,
            },
        },
    )


class _Stream:
    """Parts of an upload.

    An exception of the iterator is stored, because it is not an error of the store.
    """

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._parts)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


def _at_least(stream: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield parts of the stream until they have ``size`` bytes, or the stream ends."""
    while size > 0:
        part = next(stream, None)
        if part is None:
            return
        size -= len(part)
        yield part


class _RangeBeyondEnd(StoreError):
    """The range starts at or after the end of the object."""


@dataclass(frozen=True, slots=True)
class _ErrorAdvice:
    """Reason and advice for S3 error codes or HTTP statuses."""

    answers: frozenset[str]
    reason: Reason
    advice: str
    retriable: bool


_ERROR_ADVICE = (
    _ErrorAdvice(
        frozenset({"NoSuchBucket"}),
        Reason.BUCKET_MISSING,
        "the bucket does not exist: create it, or correct the name",
        False,
    ),
    _ErrorAdvice(
        frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "401"}),
        Reason.STORE_ACCESS_DENIED,
        "the access key or secret is wrong: correct the credentials (of a Cluster, in the Secret "
        "that credentialsSecretRef names)",
        False,
    ),
    _ErrorAdvice(
        frozenset({"AccessDenied", "403"}),
        Reason.STORE_ACCESS_DENIED,
        "access is denied: correct the credentials (of a Cluster, in the Secret that "
        "credentialsSecretRef names), or allow them to read, write, delete and list",
        False,
    ),
    _ErrorAdvice(
        frozenset({"QuotaExceeded", "XMinioStorageFull", "507"}),
        Reason.STORE_FULL,
        "the store is full: make room",
        True,
    ),
    _ErrorAdvice(
        frozenset({"NotImplemented", "501"}),
        Reason.STORE_NOT_IMPLEMENTED,
        "the store does not implement a request that Tidemark needs (conditional writes, listing, "
        "multipart uploads): use another store or version",
        False,
    ),
    _ErrorAdvice(
        frozenset({"NotS3"}),
        Reason.STORE_NOT_S3,
        "what answers there is not an S3: correct the endpoint",
        False,
    ),
    _ErrorAdvice(
        frozenset({"NoAnswer"}),
        Reason.STORE_UNREACHABLE,
        "the endpoint does not answer: check that it runs, its address and the network",
        True,
    ),
)


def _translate(where: str, key: str, error: Exception) -> StoreError:
    """Translate an error of ``obstore`` to an error of the object store's interface.

    ``where``: name of the bucket for messages. Codes that mean a known problem, such as wrong
    credentials, become StoreUnavailable with advice.
    """
    # The server's own code decides first: ``obstore`` reports "not found" for a missing bucket,
    # too, and for every path of a server that is not an S3.
    answer = _answer_codes(error)
    trouble = next((t for t in _ERROR_ADVICE if answer & t.answers), None)
    if trouble is not None:
        message = f"{where}: {trouble.advice}"
        return StoreUnavailable(message, reason=trouble.reason, retriable=trouble.retriable)
    # Then the classes of errors that ``obstore`` distinguishes.
    if isinstance(error, FileNotFoundError):
        return ObjectNotFound(f"no object {key} in {where}")
    if isinstance(error, exceptions.PreconditionError):
        return PreconditionFailed(f"{key} in {where} was changed by another writer")
    if isinstance(error, exceptions.AlreadyExistsError):
        return AlreadyExists(f"{key} exists already in {where}")
    if answer & {"InvalidRange", "416"}:
        return _RangeBeyondEnd(f"{key} in {where} ends before the range")
    # Anything unknown is retried: treating it as absence could cost data.
    first_line = (str(error).strip() or repr(error)).splitlines()[0]
    message = f"{where}: {first_line[:300]}; retrying"
    return StoreUnavailable(message, reason=Reason.STORE_ERROR, retriable=True)


def _answer_codes(error: Exception) -> frozenset[str]:
    """Return the S3 error code and the HTTP status that an error of ``obstore`` contains.

    ``obstore`` has them only in its text. The text also contains names of objects, so only patterns
    that no name can contain are searched. Two codes are added: NotS3 for a 404 without an S3 code,
    NoAnswer for a failed connection.
    """
    text = str(error)
    code, status = _CODE.search(text), _STATUS.search(text)
    found = {match[1] for match in (code, status) if match}
    # A missing object has NoSuchKey. Another 404 is of the bucket, or of another kind of server.
    if isinstance(error, FileNotFoundError) and (code is None or code[1] == "NoSuchBucket"):
        found.add("NotS3" if code is None else code[1])
    if "- HTTP error: " in text:
        # The client's own text for a connection that failed.
        found.add("NoAnswer")
    return frozenset(found)
