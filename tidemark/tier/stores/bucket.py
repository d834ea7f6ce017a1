"""Operations on one bucket of a cloud that work in the same way everywhere, through ``obstore``.

``obstore`` retries inside, so a conditional write of ours that succeeded may come back as
PreconditionError or AlreadyExistsError; the manifest's commit id settles that. What matters here is
to tell absence from trouble: a missing bucket, a wrong key or an endpoint that does not answer must
never look like a missing object. Time-outs are short and explicit: a request takes at most
``REQUEST_S``, and no retry begins later than that after the first; a part of an upload has
``UPLOAD_S``. Ranges are read in parts, so that the size of a read never meets a time-out that was
meant for a silent server. ``obstore`` repeats a request after a status of 500 or above. A 429, with
which some stores limit the rate, is repeated here.

A cloud has a :class:`Dialect` (its versions and its error codes) and opens its bucket.
"""

import itertools
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

import obstore
from obstore import exceptions

from tidemark.backoff import Backoff
from tidemark.reasons import Reason
from tidemark.records.batch import Buffer

if TYPE_CHECKING:
    from obstore import Attributes, ObjectMeta, PutResult, UpdateVersion
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Bucket

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
    cut,
)

CONNECT_S = 3
REQUEST_S = 10
UPLOAD_S = 60
RETRIES = 4
_PART_BYTES = 8 << 20
_UPLOADS_AT_ONCE = 4
_LIST_CHUNK = 1000
#: Folder without objects of Tidemark, so the answer is short.
_NO_FOLDER = "probe"
#: Single deletes refused in a row after which the store counts as failed.
_REFUSED_IN_A_ROW_MAX = 100
#: Reasons that may concern one key only; all others concern the store.
_OF_ONE_KEY = frozenset(
    {Reason.STORE_ERROR, Reason.STORE_ACCESS_DENIED, Reason.STORE_NOT_IMPLEMENTED}
)
#: Codes of a key management service have dots (AWS) or colons (MinIO).
_CODE = re.compile(r"<Code>([\w.:]+)</Code>")
_STATUS = re.compile(r"(?:status |\()code: (\d{3})")
#: Text of ``obstore`` for a range that it found to be beyond the end itself.
_BEYOND_END = re.compile(r"Wanted range starting at \d+, but object was only \d+ bytes long")
#: Text of ``obstore`` for a failed request that concerned several keys at once.
_WHOLE_REQUEST = "performing POST "
#: The request that failed: its method in texts of ``obstore``, its name in our own.
_REQUEST = re.compile(r"performing ([A-Z]+) |^(\w+): status code")
#: Pauses after a status of 429.
_THROTTLED = Backoff(first_s=0.1, most_s=2.0)
#: Texts of ``obstore`` for a token that could not be had before the request itself.
_NO_TOKEN = re.compile("performing token request|token response body|federated token file")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ErrorAdvice:
    """Reason and advice for error codes of a cloud, or HTTP statuses."""

    answers: frozenset[str]
    reason: Reason
    advice: str
    retriable: bool


#: Code that is added to a 404 without a code of the cloud: another kind of server answers.
OTHER_SERVER = "OtherServer"
#: Code that is added to a failed connection.
NO_ANSWER = "NoAnswer"
#: Code that is added if no token for requests could be had.
NO_TOKEN = "NoToken"

#: Code of a clock that differs too much from the store's.
CLOCK_SKEWED = "RequestTimeTooSkewed"

#: Advice about errors whose status alone means something else. It precedes the cloud's own.
FIRST_ADVICE = (
    ErrorAdvice(
        frozenset({CLOCK_SKEWED}),
        Reason.STORE_CLOCK_SKEWED,
        "the clocks of this machine and of the store differ by more than the store accepts: "
        "correct the clock of the machine (NTP)",
        True,
    ),
)

#: Advice about errors that mean the same in every cloud.
COMMON_ADVICE = (
    ErrorAdvice(
        frozenset({"SlowDown", "ServerBusy", "429", "503"}),
        Reason.STORE_THROTTLED,
        "the store limits the rate of requests, is overloaded, or does not run behind its address "
        "(status 429 or 503), and requests are repeated: check that it runs, raise its limits, or "
        "spread the tier over more buckets",
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
        frozenset({NO_TOKEN}),
        Reason.STORE_CREDENTIALS_MISSING,
        "neither the configuration nor the environment has credentials: give the pod or process an "
        "identity of the cloud, or credentials (of a Cluster, in a Secret that "
        "credentialsSecretRef names)",
        True,
    ),
    ErrorAdvice(
        frozenset({NO_ANSWER}),
        Reason.STORE_UNREACHABLE,
        "the endpoint does not answer: check that it runs, its address and the network",
        True,
    ),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Versions and errors of a cloud.

    ``compared``: field of ``obstore``'s answers that a conditional write compares. ``advice``: what
    to do about known errors; the first match counts. ``keys_at_once``: keys in one bulk delete.
    ``phrases``: error codes by a text that answers have instead.
    """

    compared: Literal["e_tag", "version"]
    advice: tuple[ErrorAdvice, ...]
    keys_at_once: int
    phrases: Mapping[str, str] = field(default_factory=dict)


class BucketStore:
    """One bucket of a cloud.

    ``open_bucket``: opens it with a time limit in seconds for each request. ``where``: location for
    messages, without credentials. ``stream_attributes``: of objects that are uploaded from parts.
    """

    def __init__(
        self,
        dialect: Dialect,
        open_bucket: Callable[[int], "Bucket"],
        where: str,
        stream_attributes: "Attributes | None" = None,
    ) -> None:
        self._dialect = dialect
        self._where = where
        self._stream_attributes = stream_attributes
        self._open = open_bucket

    # Opened by the first request, which translates the errors of unusable credentials.
    @cached_property
    def _bucket(self) -> "Bucket":
        return self._open(REQUEST_S)

    @cached_property
    def _uploads(self) -> "Bucket":
        # Parts of an upload need more time than other requests, and time-outs belong to a client.
        return self._open(UPLOAD_S)

    def get(self, key: str) -> VersionedObject:
        """Return the whole object."""
        result = self._call(key, lambda path: obstore.get(self._bucket, path))
        if result.meta["size"] > OBJECT_BYTES_MAX:
            raise ObjectTooLarge(key, self.describe(), result.meta["size"])
        # The size is known before the body is read, so a foreign object never fills the memory.
        data = self._call(key, lambda _: bytes(result.bytes()), once=True)
        return VersionedObject(data, self._version(key, result.meta))

    def get_range(self, key: str, start: int, end_exclusive: int) -> Buffer:
        """Return the bytes of the range, read in parts and cut off at the object's end."""
        parts: list[Buffer] = []
        while start < end_exclusive:
            end = min(end_exclusive, start + _PART_BYTES)
            part = self._part(key, start, end)
            parts.append(part)
            # A short part is the end of the object: another request would only be refused.
            if len(part) < end - start:
                break
            start = end
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def get_parts(self, key: str, start: int, sizes: Sequence[int]) -> Sequence[Buffer]:
        """Return consecutive parts of the object, copied from one read of all of them."""
        return cut(self.get_range(key, start, start + sum(sizes)), sizes)

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
                    attributes=self._stream_attributes,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_UPLOADS_AT_ONCE,
                ),
                once=True,
            )
        except StoreError:
            # The store's client wraps errors of the iterator: raise the original one.
            if stream.error is not None:
                raise stream.error from None
            raise

    def create(self, key: str, data: bytes) -> Version:
        """Write only if the key has no object."""
        result: PutResult = self._call(
            key, lambda path: obstore.put(self._bucket, path, data, mode="create")
        )
        return self._version(key, result)

    def replace(self, key: str, data: bytes, expected: Version) -> Version:
        """Write only over the expected version."""
        mode: UpdateVersion = (
            {"e_tag": expected} if self._dialect.compared == "e_tag" else {"version": expected}
        )
        result = self._call(key, lambda path: obstore.put(self._bucket, path, data, mode=mode))
        return self._version(key, result)

    def delete(self, key: str) -> None:
        """Delete; a missing object is no error."""
        try:
            self._call(key, self._delete)
        except ObjectNotFound:
            return

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete by bulk requests, and one by one what such a request refuses.

        Raises DeletesRefused with the keys that are still there, and StoreUnavailable for a failure
        that does not concern a single key.
        """
        refused: dict[str, str] = {}
        # A store that refuses many keys in a row refuses all: its error ends the call early.
        in_a_row = 0
        # First in bulk; the call returns the keys that still have to be deleted one by one.
        for begin in range(0, len(keys), self._dialect.keys_at_once):
            chunk = [check_key(key) for key in keys[begin : begin + self._dialect.keys_at_once]]
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

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object in a folder and below it."""
        folder = check_prefix(prefix).rstrip("/") or None

        def begin(_: str) -> "tuple[Iterator[Sequence[ObjectMeta]], Sequence[ObjectMeta] | None]":
            chunks = iter(obstore.list(self._bucket, folder, chunk_size=_LIST_CHUNK))
            return chunks, next(chunks, None)

        chunks, chunk = self._call("", begin)
        while chunk is not None:
            for meta in chunk:
                modified_ms = int(meta["last_modified"].timestamp() * 1000)
                yield ObjectInfo(meta["path"], meta["size"], modified_ms)
            # A listing ends with its first error: another attempt would look like its end.
            chunk = self._call("", lambda _: next(chunks, None), once=True)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders in a folder."""
        folder = check_prefix(prefix).rstrip("/") or None
        listed = self._call("", lambda _: obstore.list_with_delimiter(self._bucket, folder))
        for path in listed["common_prefixes"]:
            yield path.rstrip("/").rpartition("/")[2]

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Yield nothing: ``obstore`` cannot list unfinished uploads."""
        return iter(())

    def abort(self, upload: UnfinishedUpload) -> None:
        """Do nothing: no upload is ever listed."""

    def probe(self) -> None:
        """Check that the bucket exists and may be listed, by one small request.

        Raises StoreUnavailable, with ``BucketMissing`` if the service has no such bucket.
        """
        self._call("", lambda _: obstore.list_with_delimiter(self._bucket, _NO_FOLDER))

    def describe(self) -> str:
        """Return the location for messages, without credentials."""
        return self._where

    def _delete(self, path: str) -> None:
        if not path:
            raise ValueError("no key: the request would be for the bucket itself")
        obstore.delete(self._bucket, path)

    def _delete_in_bulk(self, keys: Sequence[str]) -> Collection[str]:
        """Delete keys in one request; return those that remain to be deleted one by one."""

        def delete(_: str) -> Collection[str]:
            try:
                obstore.delete(self._bucket, list(keys))
            except FileNotFoundError:
                # One missing key fails the whole request.
                return keys
            return ()

        try:
            return self._call("", delete)
        except StoreUnavailable as error:
            if error.reason not in _OF_ONE_KEY or _WHOLE_REQUEST in str(error.__cause__):
                raise
            return keys

    def _part(self, key: str, start: int, end: int) -> Buffer:
        def read(path: str) -> Buffer:
            return memoryview(obstore.get_range(self._bucket, path, start=start, end=end))

        try:
            return self._call(key, read)
        except _RangeBeyondEnd:
            return b""

    def _version(self, key: str, answer: "ObjectMeta | PutResult") -> Version:
        version = answer[self._dialect.compared]
        if not version:
            what = "ETag" if self._dialect.compared == "e_tag" else "generation"
            raise StoreUnavailable(
                f"{self.describe()} gives no {what} for {key}: Tidemark needs a store with "
                "conditional writes",
                reason=Reason.STORE_WITHOUT_ETAGS,
                retriable=False,
            )
        return Version(version)

    def _call(
        self, key: str, operation: Callable[[str], _Result], *, once: bool = False
    ) -> _Result:
        """Run one operation and translate its errors to those of the port.

        It is repeated while the store limits the rate, unless it can run only ``once``.
        """
        # An empty key is for requests about the bucket itself.
        path = check_key(key) if key else key
        for attempt in itertools.count(1):
            try:
                return operation(path)
            except (exceptions.BaseError, OSError, ValueError) as error:
                is_limited = "429" in answer_codes(self._dialect, error)
                if once or not is_limited or attempt > RETRIES:
                    raise _translate(self._dialect, self.describe(), key, error) from error
            time.sleep(_THROTTLED.pause_s(attempt))
        raise AssertionError("unreachable: the last attempt returns or raises")


def client_options(endpoint: str, request_s: int) -> "ClientConfig":
    """Return options of the HTTP client.

    ``endpoint``: configured address, "" for the cloud's own. ``request_s``: time limit of each
    attempt of a request.
    """
    options: ClientConfig = {
        # Plain HTTP only if the configuration says so.
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=request_s),
    }
    return options


def retry_config(request_s: int) -> "RetryConfig":
    """Return the rules for retries. ``request_s``: time in which to retry."""
    config: RetryConfig = {
        "max_retries": RETRIES,
        "retry_timeout": timedelta(seconds=request_s),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=2),
            "base": 2,
        },
    }
    return config


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


def _translate(dialect: Dialect, where: str, key: str, error: Exception) -> StoreError:
    """Translate an error of ``obstore`` to an error of the object store's interface.

    ``where``: name of the bucket for messages. Codes that mean a known problem, such as wrong
    credentials, become StoreUnavailable with advice.
    """
    # The server's own code decides first: ``obstore`` reports "not found" for a missing bucket,
    # too, and for every path of another kind of server.
    answer = answer_codes(dialect, error)
    known = (*FIRST_ADVICE, *dialect.advice, *COMMON_ADVICE)
    trouble = next((advice for advice in known if answer & advice.answers), None)
    if trouble is not None:
        message = f"{where}: {trouble.advice}"
        refused = _REQUEST.search(str(error))
        # A policy may deny one kind of request only.
        if trouble.reason == Reason.STORE_ACCESS_DENIED and refused:
            message += f". It refused {refused[1] or refused[2]}"
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


def answer_codes(dialect: Dialect, error: Exception) -> frozenset[str]:
    """Return the error code and the HTTP status that an error of ``obstore`` contains.

    ``obstore`` has them only in its text. The text also contains names of objects, so only patterns
    that no name can contain are searched. Codes are added: OTHER_SERVER for a 404 without a code,
    NO_ANSWER for a failed connection, NO_TOKEN for a token service that failed.
    """
    text = str(error)
    named = {name for phrase, name in dialect.phrases.items() if phrase in text}
    if _NO_TOKEN.search(text):
        # Its status and its connection say nothing about the store.
        return frozenset({NO_TOKEN} | named)
    code, status = _CODE.search(text), _STATUS.search(text)
    found = named | {match[1] for match in (code, status) if match}
    # A cloud gives its 404 a code, for a missing object another one than for a missing bucket.
    if isinstance(error, FileNotFoundError) and found <= {"404"}:
        found.add(OTHER_SERVER)
    if _BEYOND_END.search(text):
        found.add("InvalidRange")
    if "- HTTP error: " in text:
        # The client's own text for a connection that failed.
        found.add(NO_ANSWER)
    return frozenset(found)
