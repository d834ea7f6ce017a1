"""S3 requests that ``obstore`` does not offer, or whose response it does not return completely.

They are signed with AWS Signature Version 4. Each request opens its own connection. All of them are
idempotent, so temporary failures are retried for as long as ``obstore`` retries its own.

* DeleteObjects with a result for each key, and DeleteObject. ``obstore`` sends DeleteObjects even
  for a single key, and reports several keys as one failure. S3 answers 200 even if it refused some
  keys, and names them in the body: all other keys are deleted. Some stores do not have this
  request (501) or require a header (400 for a missing Content-MD5). The caller then deletes keys
  one by one.
* Finding and aborting multipart uploads that have begun and not ended. A copier that is killed
  within an upload leaves its parts in the bucket, paid for and seen by no listing of objects.
  Uploads are listed without a prefix and filtered here: MinIO takes a prefix for the whole name of
  one object.
"""

import base64
import hashlib
import hmac
import http.client
import itertools
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tidemark.backoff import Backoff
from tidemark.reasons import Reason
from tidemark.tier.stores.objects import StoreUnavailable, UnfinishedUpload
from tidemark.tier.stores.s3_config import S3Config

TIMEOUT_S = 10.0
#: S3's limit of keys in one DeleteObjects.
KEYS_AT_ONCE = 1000
_DENIED = (401, 403)
_GONE = frozenset({"NoSuchKey", "NoSuchVersion"})
#: Time limit of a whole response, which may arrive in small pieces that are each in time.
ANSWER_S = 30.0
_PIECE_BYTES = 64 << 10
#: A page has up to 1,000 rows; S3 sends no larger response.
_ANSWER_BYTES_MAX = 8 << 20
#: Statuses of temporary failures, and how often a request is sent.
_PASSING = frozenset({429, 500, 502, 503, 504})
_ATTEMPTS = 4
_RETRY = Backoff(first_s=0.1, most_s=2.0)
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@dataclass(frozen=True, slots=True)
class S3Response:
    """Status and body of an answer."""

    status: int
    body: bytes


class _Place(NamedTuple):
    """Host and path prefix of the requests to a bucket."""

    secure: bool
    host: str
    path: str


def send(
    config: S3Config,
    bucket: str,
    method: str,
    key: str,
    query: Mapping[str, str],
    *,
    body: bytes = b"",
) -> S3Response:
    """Send a request and return the answer, whatever its status is. Blocks.

    ``key``: relative to the bucket, "" for the bucket itself. Retries without an answer and after
    statuses that mean a temporary failure. Raises StoreUnavailable if there is no answer at last.
    """
    began_s = time.monotonic()
    # Statuses 429 and 5xx pass by themselves. Attempts and their total time are limited.
    for attempt in itertools.count(1):
        late = attempt >= _ATTEMPTS or time.monotonic() - began_s > TIMEOUT_S
        try:
            answer = _sent(config, bucket, method, key, query, body)
        except StoreUnavailable:
            if late:
                raise
        else:
            if late or answer.status not in _PASSING:
                return answer
        time.sleep(_RETRY.pause_s(attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _sent(
    config: S3Config, bucket: str, method: str, key: str, query: Mapping[str, str], body: bytes
) -> S3Response:
    """Make one attempt of a request on a new connection.

    ``body`` empty: the request has none. Raises StoreUnavailable, retriable, if the endpoint does
    not answer.
    """
    # AWS Signature Version 4 signs method, path, ordered query and body. The path must therefore be
    # quoted exactly as it is sent.
    place = _place(config, bucket)
    path = urllib.parse.quote(f"{place.path}/{key}", safe="/-_.~")
    ordered = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote)
    headers = _signed(config, method, place.host, path, ordered, body, time.gmtime())
    kind = http.client.HTTPSConnection if place.secure else http.client.HTTPConnection
    connection = kind(place.host, timeout=TIMEOUT_S)
    target = f"{path}?{ordered}" if ordered else path
    began_s = time.monotonic()
    try:
        connection.request(method, target, body=body or None, headers=headers)
        # The socket's time-out covers single reads, so the body has a deadline of its own.
        response = connection.getresponse()
        return S3Response(response.status, _body(response, until_s=began_s + ANSWER_S))
    except (OSError, http.client.HTTPException) as error:
        raise StoreUnavailable(
            f"bucket {bucket}: the endpoint does not answer: check that it runs, its address and "
            f"the network ({method} {target}: {error})",
            reason=Reason.STORE_UNREACHABLE,
            retriable=True,
        ) from error
    finally:
        connection.close()


def _body(response: http.client.HTTPResponse, until_s: float) -> bytes:
    """Read a response's body up to the size limit, until ``until_s`` (monotonic time).

    A body that ends early raises IncompleteRead, so that it does not look like the response of a
    server that is no S3. Raises OSError, HTTPException.
    """
    # None: chunked, so the length is not known.
    expected, body = response.length, bytearray()
    most = _ANSWER_BYTES_MAX if expected is None else min(expected, _ANSWER_BYTES_MAX)
    while len(body) < most:
        piece = response.read1(min(_PIECE_BYTES, most - len(body)))
        if not piece:
            break
        body += piece
        # A server that sends single bytes would otherwise block the thread for hours.
        if time.monotonic() > until_s:
            raise TimeoutError(f"{len(body)} bytes of its answer came in {ANSWER_S:g} s")
    if expected is not None and len(body) < most:
        raise http.client.IncompleteRead(bytes(body), expected - len(body))
    return bytes(body)


def parsed(body: bytes, bucket: str) -> ElementTree.Element:
    """Parse an XML answer. Raises StoreUnavailable."""
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise StoreUnavailable(
            f"bucket {bucket}: what answers is not an S3: correct the endpoint",
            reason=Reason.STORE_NOT_S3,
            retriable=False,
        ) from error


def elements(answer: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Return all elements of that name; some stores omit the namespace."""
    return [element for element in answer.iter() if element.tag in (f"{_XML}{name}", name)]


def text_of(element: ElementTree.Element, name: str) -> str:
    """Return the text of a child, "" for none."""
    return element.findtext(f"{_XML}{name}") or element.findtext(name) or ""


def _place(config: S3Config, bucket: str) -> _Place:
    """Return path-style access for a configured endpoint, else AWS's own host of the bucket."""
    if not config.endpoint:
        return _Place(True, f"{bucket}.s3.{config.region}.amazonaws.com", "")
    parts = urllib.parse.urlsplit(config.endpoint)
    return _Place(parts.scheme == "https", parts.netloc, f"{parts.path.rstrip('/')}/{bucket}")


def _signed(
    config: S3Config,
    method: str,
    host: str,
    path: str,
    query: str,
    body: bytes,
    now: time.struct_time,
) -> dict[str, str]:
    """Return the headers of a request with its signature (AWS Signature Version 4).

    ``path`` and ``query`` are quoted as they are sent. ``now``: UTC; the server refuses a
    difference of more than some minutes.
    """
    date, stamp = time.strftime("%Y%m%d", now), time.strftime("%Y%m%dT%H%M%SZ", now)
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    if body:
        # S3 requires Content-MD5 for DeleteObjects.
        md5 = hashlib.md5(body, usedforsecurity=False).digest()
        headers = {"content-md5": base64.b64encode(md5).decode("ascii"), **headers}
    # The steps of AWS's specification. First the canonical request: exactly what is signed.
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    canonical = "\n".join((method, path, query, *lines, "", names, digest))
    # Then the string to sign: the scope limits the signature to a day, a region and S3.
    scope = f"{date}/{config.region}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashed))
    # Then the signing key, derived from the secret key and the parts of the scope.
    key = f"AWS4{config.secret_access_key}".encode()
    for part in (date, config.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    credential = f"{config.access_key_id}/{scope}"
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


class BulkDeleteRefused(Exception):
    """The store refuses the whole request; single deletes may work."""


def delete_object(config: S3Config, bucket: str, key: str) -> None:
    """Delete one key, relative to the configured prefix; a missing key is no error. Blocks. Raises
    StoreUnavailable, and OSError with the answer if the store refuses."""
    if not key:
        raise ValueError("no key: the request would be for the bucket itself")
    path = f"{config.prefix}/{key}" if config.prefix else key
    answer = send(config, bucket, "DELETE", path, {})
    if answer.status < 300:
        return
    error = _error("DeleteObject", answer)
    if answer.status == 404 and any(f"<Code>{code}</Code>" in str(error) for code in _GONE):
        return
    raise error


def delete_objects(config: S3Config, bucket: str, keys: Sequence[str]) -> Mapping[str, str]:
    """Delete up to ``KEYS_AT_ONCE`` keys, relative to the configured prefix, by one request.

    Returns the store's message for each key that it did not delete. Blocks. Raises
    BulkDeleteRefused if the keys should be deleted one by one instead. Raises StoreUnavailable
    without an answer, and OSError with the answer if single deletes would fail, too.
    """
    # Quiet: the answer lists only keys that were not deleted.
    folder = f"{config.prefix}/" if config.prefix else ""
    rows = "".join(f"<Object><Key>{escape(folder + key)}</Key></Object>" for key in keys)
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    body = f'<Delete xmlns="{namespace}"><Quiet>true</Quiet>{rows}</Delete>'.encode()
    answer = send(config, bucket, "POST", "", {"delete": ""}, body=body)
    # Refusals of the whole request.
    if answer.status in _DENIED or (answer.status >= 500 and answer.status != 501):
        raise _error("DeleteObjects", answer)
    if answer.status != 200:
        raise BulkDeleteRefused(f"bucket {bucket}: status {answer.status} for DeleteObjects")
    found = parsed(answer.body, bucket)
    if not found.tag.endswith("DeleteResult"):  # S3 may send an error with status 200
        code = text_of(found, "Code") or found.tag
        raise BulkDeleteRefused(f"bucket {bucket}: {code} for DeleteObjects")
    # Refusals of single keys. A foreign key means that the answer cannot be trusted.
    refused: dict[str, str] = {}
    requested = frozenset(keys)
    for error in elements(found, "Error"):
        code, key = text_of(error, "Code"), text_of(error, "Key").removeprefix(folder)
        if key not in requested:
            raise BulkDeleteRefused(f"bucket {bucket}: {code} for a key that was not requested")
        # A key that does not exist counts as deleted.
        if code not in _GONE:
            refused[key] = f"{code} {text_of(error, 'Message')}".strip()
    return refused


def _error(request: str, answer: S3Response) -> OSError:
    """Build the error in ``obstore``'s words, which the caller maps to the port's errors."""
    body = answer.body.decode("utf-8", "replace")
    text = f"{request}: status code: {answer.status}: {body}"
    return FileNotFoundError(text) if answer.status == 404 else OSError(text)


def unfinished_uploads(config: S3Config, bucket: str) -> Iterator[UnfinishedUpload]:
    """Yield multipart uploads that were begun and not ended, below the configured prefix.

    Keys are relative to that prefix. Blocks. Raises StoreUnavailable.
    """
    folder = f"{config.prefix}/" if config.prefix else ""
    # Position in the listing (ListMultipartUploads), empty for the first page.
    marks: dict[str, str] = {}
    while True:
        page = _checked(bucket, "GET", send(config, bucket, "GET", "", {"uploads": "", **marks}))
        answer = parsed(page.body, bucket)
        for upload in elements(answer, "Upload"):
            key = text_of(upload, "Key")
            if key.startswith(folder):
                begun_ms = _ms_of(text_of(upload, "Initiated"))
                yield UnfinishedUpload(key[len(folder) :], text_of(upload, "UploadId"), begun_ms)
        former, marks = (
            marks,
            {
                "key-marker": text_of(answer, "NextKeyMarker"),
                "upload-id-marker": text_of(answer, "NextUploadIdMarker"),
            },
        )
        # A server that repeats the same mark would be queried for ever.
        if text_of(answer, "IsTruncated") != "true" or not marks["key-marker"] or marks == former:
            return


def abort_upload(config: S3Config, bucket: str, upload: UnfinishedUpload) -> None:
    """Drop the parts of an upload; a missing one is no error. Blocks; raises StoreUnavailable."""
    path = f"{config.prefix}/{upload.key}" if config.prefix else upload.key
    answer = send(config, bucket, "DELETE", path, {"uploadId": upload.upload_id})
    if answer.status != 404:
        _checked(bucket, "DELETE", answer)


def _checked(bucket: str, method: str, answer: S3Response) -> S3Response:
    if answer.status >= 300:
        raise _refused(bucket, method, answer.status)
    return answer


def _refused(bucket: str, method: str, status: int) -> StoreUnavailable:
    what = f"bucket {bucket}: status {status} for {method} of unfinished uploads"
    if status >= 500 and status != 501:
        return StoreUnavailable(
            f"{what}: tried again later", reason=Reason.STORE_UNREACHABLE, retriable=True
        )
    return StoreUnavailable(
        f"{what}: allow the credentials s3:ListBucketMultipartUploads and s3:AbortMultipartUpload",
        reason=Reason.STORE_ACCESS_DENIED,
        retriable=True,
    )


def _ms_of(time_text: str) -> int:
    """Return a time in ms. An unreadable one counts as now, so that the upload is not removed."""
    try:
        return int(datetime.fromisoformat(time_text).timestamp() * 1000)
    except ValueError:
        return int(time.time() * 1000)
