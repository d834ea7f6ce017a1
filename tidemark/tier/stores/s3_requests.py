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
* Creating a bucket.
"""

import base64
import hashlib
import http.client
import itertools
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tidemark.backoff import Backoff
from tidemark.reasons import Reason
from tidemark.tier.stores.aws_identity import CredentialsMissing
from tidemark.tier.stores.aws_signature import SignatureScope, signed_headers
from tidemark.tier.stores.http_exchange import HttpLimits, HttpRequest, HttpResponse, exchange
from tidemark.tier.stores.objects import StoreUnavailable, UnfinishedUpload
from tidemark.tier.stores.s3_config import REGION, S3Config
from tidemark.tier.stores.s3_credentials import provider_of

TIMEOUT_S = 10.0
#: S3's limit of keys in one DeleteObjects.
KEYS_AT_ONCE = 1000
_DENIED = (401, 403)
_GONE = frozenset({"NoSuchKey", "NoSuchVersion"})
#: Time limit of a whole response, which may arrive in small pieces that are each in time.
ANSWER_S = 30.0
#: A page has up to 1,000 rows; S3 sends no larger response.
_ANSWER_BYTES_MAX = 8 << 20
#: Statuses of temporary failures, and how often a request is sent.
_PASSING = frozenset({429, 500, 502, 503, 504})
_ATTEMPTS = 4
_RETRY = Backoff(first_s=0.1, most_s=2.0)
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def send(
    config: S3Config,
    bucket: str,
    method: str,
    key: str,
    query: Mapping[str, str],
    *,
    body: bytes = b"",
) -> HttpResponse:
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
        except CredentialsMissing:
            raise
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
) -> HttpResponse:
    """Make one attempt of a request on a new connection.

    ``body`` empty: the request has none. Raises StoreUnavailable, retriable, if the endpoint does
    not answer.
    """
    # AWS Signature Version 4 signs method, path, ordered query and body. The path must therefore be
    # quoted exactly as it is sent.
    address = config.address(bucket)
    path = urllib.parse.quote(f"{address.path}/{key}", safe="/-_.~")
    ordered = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote)
    url = f"{address.origin}{path}?{ordered}" if ordered else f"{address.origin}{path}"
    headers = {}
    if body:
        # S3 requires Content-MD5 for DeleteObjects.
        md5 = hashlib.md5(body, usedforsecurity=False).digest()
        headers["content-md5"] = base64.b64encode(md5).decode("ascii")
    scope = SignatureScope(region=config.region, service="s3", now=time.gmtime())
    credentials = provider_of(config).current()
    signed = signed_headers(credentials, scope, method, url, body, headers)
    try:
        return exchange(
            HttpRequest(method=method, url=url, headers=signed, body=body, ca=config.ca),
            HttpLimits(wait_s=TIMEOUT_S, answer_s=ANSWER_S, answer_bytes=_ANSWER_BYTES_MAX),
        )
    except (OSError, http.client.HTTPException) as error:
        raise StoreUnavailable(
            f"bucket {bucket}: the endpoint does not answer: check that it runs, its address and "
            f"the network ({method} {path}: {error})",
            reason=Reason.STORE_UNREACHABLE,
            retriable=True,
        ) from error


def parsed(body: bytes, bucket: str) -> ElementTree.Element:
    """Parse an XML answer. Raises StoreUnavailable."""
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise StoreUnavailable(
            f"bucket {bucket}: the server is not an S3 store: correct the endpoint",
            reason=Reason.STORE_NOT_S3,
            retriable=False,
        ) from error


def elements(answer: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Return all elements of that name; some stores omit the namespace."""
    return [element for element in answer.iter() if element.tag in (f"{_XML}{name}", name)]


def text_of(element: ElementTree.Element, name: str) -> str:
    """Return the text of a child, "" for none."""
    return element.findtext(f"{_XML}{name}") or element.findtext(name) or ""


def create_bucket(config: S3Config, bucket: str) -> None:
    """Create a bucket in the configured region. Blocks. Raises StoreUnavailable, and OSError with
    the answer if the store refuses."""
    # S3 takes its first region as the default, and refuses it as a constraint.
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    constraint = f"<LocationConstraint>{escape(config.region)}</LocationConstraint>"
    body = (
        f'<CreateBucketConfiguration xmlns="{namespace}">{constraint}</CreateBucketConfiguration>'
    )
    answer = send(
        config, bucket, "PUT", "", {}, body=b"" if config.region == REGION else body.encode()
    )
    if answer.status >= 300:
        raise _error("CreateBucket", answer)


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


def _error(request: str, answer: HttpResponse) -> OSError:
    """Build the error in ``obstore``'s words, which the caller maps to the port's errors."""
    body = answer.body.decode("utf-8", "replace")
    text = f"{request}: status code: {answer.status}: {body}"
    return FileNotFoundError(text) if answer.status == 404 else OSError(text)


def unfinished_uploads(config: S3Config, bucket: str) -> Iterator[UnfinishedUpload]:
    """Yield multipart uploads that were begun and not ended, below the configured prefix.

    Keys are relative to that prefix. Blocks. Raises StoreUnavailable.
    """
    folder = f"{config.prefix}/" if config.prefix else ""
    # Position in the listing (ListMultipartUploads), empty for the first page. ``listed``: ids of
    # the last page's uploads. ``before``: its last key but one.
    marks: dict[str, str] = {}
    listed: frozenset[str] = frozenset()
    before = ""
    while True:
        page = send(config, bucket, "GET", "", {"uploads": "", **marks})
        if page.status == 400 and marks:
            # Versity S3 Gateway refuses the upload id of its own page (its issue 2149). A key alone
            # skips all uploads of that key, so the page begins one key earlier.
            key = before or marks["key-marker"]
            page = send(config, bucket, "GET", "", {"uploads": "", "key-marker": key})
        answer = parsed(_checked(bucket, "GET", page).body, bucket)
        uploads = elements(answer, "Upload")
        for upload in uploads:
            key, upload_id = text_of(upload, "Key"), text_of(upload, "UploadId")
            if key.startswith(folder) and upload_id not in listed:
                begun_ms = _ms_of(text_of(upload, "Initiated"))
                yield UnfinishedUpload(key[len(folder) :], upload_id, begun_ms)
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
        listed = frozenset(text_of(upload, "UploadId") for upload in uploads)
        keys = (text_of(upload, "Key") for upload in uploads)
        before = max((key for key in keys if key < marks["key-marker"]), default="")


def abort_upload(config: S3Config, bucket: str, upload: UnfinishedUpload) -> None:
    """Drop the parts of an upload; a missing one is no error. Blocks; raises StoreUnavailable."""
    path = f"{config.prefix}/{upload.key}" if config.prefix else upload.key
    answer = send(config, bucket, "DELETE", path, {"uploadId": upload.upload_id})
    if answer.status != 404:
        _checked(bucket, "DELETE", answer)


def _checked(bucket: str, method: str, answer: HttpResponse) -> HttpResponse:
    if answer.status >= 300:
        raise _refused(bucket, method, answer)
    return answer


def _refused(bucket: str, method: str, answer: HttpResponse) -> StoreUnavailable:
    what = f"bucket {bucket}: status {answer.status} for {method} of unfinished uploads"
    if answer.status in _PASSING:
        return StoreUnavailable(
            f"{what}: tried again later", reason=Reason.STORE_UNREACHABLE, retriable=True
        )
    if answer.status in _DENIED:
        return StoreUnavailable(
            f"{what}: allow the credentials s3:ListBucketMultipartUploads and "
            "s3:AbortMultipartUpload",
            reason=Reason.STORE_ACCESS_DENIED,
            retriable=True,
        )
    # The store's own words say more than a guess.
    text = " ".join(answer.body[:300].decode("utf-8", "replace").split())
    return StoreUnavailable(
        f"{what}: {text}. Check that the store implements ListMultipartUploads and "
        "AbortMultipartUpload",
        reason=Reason.STORE_NOT_IMPLEMENTED if answer.status == 501 else Reason.STORE_ERROR,
        retriable=True,
    )


def _ms_of(time_text: str) -> int:
    """Return a time in ms. An unreadable one counts as now, so that the upload is not removed."""
    try:
        return int(datetime.fromisoformat(time_text).timestamp() * 1000)
    except ValueError:
        return int(time.time() * 1000)
