"""Multipart uploads of an S3 that have begun and not ended: finding and aborting them.

A copier that is killed within an upload leaves its parts in the bucket, paid for and seen by no
listing of objects. ``obstore`` has no call for these two requests, so they are made here, signed as
AWS's "Signature Version 4" says (``minio``, which brokers do without, has them as private calls
that lose the second mark of a page). Uploads are asked for without a prefix and sorted out here:
MinIO takes a prefix for the whole name of one object.
"""

import hashlib
import hmac
import http.client
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple
from xml.etree import ElementTree

from tidemark.tier.objects import StoreUnavailable, UnfinishedUpload
from tidemark.tier.s3_config import S3Config

TIMEOUT_S = 10.0
#: A page has up to 1,000 uploads; an answer that is larger is no answer of an S3.
_ANSWER_BYTES_MAX = 8 << 20
_EMPTY = hashlib.sha256(b"").hexdigest()
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def unfinished(config: S3Config, bucket: str) -> Iterator[UnfinishedUpload]:
    """Those below the configured prefix, with keys relative to it. Blocks; StoreUnavailable."""
    folder = f"{config.prefix}/" if config.prefix else ""
    marks: dict[str, str] = {}
    while True:
        answer = _parsed(_request(config, bucket, "GET", "", {"uploads": "", **marks}), bucket)
        for upload in answer.iter(f"{_XML}Upload"):
            key = _text(upload, "Key")
            if key.startswith(folder):
                begun_ms = _ms_of(_text(upload, "Initiated"))
                yield UnfinishedUpload(key[len(folder) :], _text(upload, "UploadId"), begun_ms)
        former, marks = (
            marks,
            {
                "key-marker": _text(answer, "NextKeyMarker"),
                "upload-id-marker": _text(answer, "NextUploadIdMarker"),
            },
        )
        # One that names the same mark again would be asked for ever.
        if _text(answer, "IsTruncated") != "true" or not marks["key-marker"] or marks == former:
            return


def abort(config: S3Config, bucket: str, upload: UnfinishedUpload) -> None:
    """Drop its parts; one that is gone is fine. Blocks; raises StoreUnavailable."""
    path = f"{config.prefix}/{upload.key}" if config.prefix else upload.key
    _request(config, bucket, "DELETE", path, {"uploadId": upload.upload_id})


def _refused(bucket: str, method: str, status: int) -> StoreUnavailable:
    what = f"bucket {bucket}: status {status} for {method} of unfinished uploads"
    if status >= 500 and status != 501:
        return StoreUnavailable(
            f"{what}: tried again later", reason="StoreUnreachable", retriable=True
        )
    return StoreUnavailable(
        f"{what}: allow the credentials s3:ListBucketMultipartUploads and s3:AbortMultipartUpload",
        reason="StoreAccessDenied",
        retriable=True,
    )


class _Place(NamedTuple):
    """Where a request goes, and how the bucket stands in it."""

    secure: bool
    host: str
    path: str


def _request(
    config: S3Config, bucket: str, method: str, key: str, query: Mapping[str, str]
) -> bytes:
    place = _place(config, bucket)
    path = urllib.parse.quote(f"{place.path}/{key}", safe="/-_.~")
    ordered = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote)
    headers = _signed(config, method, place.host, path, ordered, time.gmtime())
    kind = http.client.HTTPSConnection if place.secure else http.client.HTTPConnection
    connection = kind(place.host, timeout=TIMEOUT_S)
    try:
        connection.request(method, f"{path}?{ordered}", headers=headers)
        response = connection.getresponse()
        body = response.read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise StoreUnavailable(
            f"bucket {bucket}: unfinished uploads cannot be asked for: {error}",
            reason="StoreUnreachable",
            retriable=True,
        ) from error
    finally:
        connection.close()
    if response.status >= 300 and not (method == "DELETE" and response.status == 404):
        raise _refused(bucket, method, response.status)
    return body


def _place(config: S3Config, bucket: str) -> _Place:
    """By path where an endpoint is named, else AWS's own address of the bucket."""
    if not config.endpoint:
        return _Place(True, f"{bucket}.s3.{config.region}.amazonaws.com", "")
    parts = urllib.parse.urlsplit(config.endpoint)
    return _Place(parts.scheme == "https", parts.netloc, f"{parts.path.rstrip('/')}/{bucket}")


def _signed(
    config: S3Config, method: str, host: str, path: str, query: str, now: time.struct_time
) -> dict[str, str]:
    """The headers of a request without a body."""
    date, stamp = time.strftime("%Y%m%d", now), time.strftime("%Y%m%dT%H%M%SZ", now)
    headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    canonical = "\n".join((method, path, query, *lines, "", names, _EMPTY))
    scope = f"{date}/{config.region}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashed))
    key = f"AWS4{config.secret_access_key}".encode()
    for part in (date, config.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    credential = f"{config.access_key_id}/{scope}"
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _parsed(body: bytes, bucket: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise StoreUnavailable(
            f"bucket {bucket}: what answers is not an S3: correct the endpoint",
            reason="StoreNotS3",
            retriable=False,
        ) from error


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{_XML}{name}") or ""


def _ms_of(time_text: str) -> int:
    """A time that cannot be read counts as now: what has no known age is not old."""
    try:
        return int(datetime.fromisoformat(time_text).timestamp() * 1000)
    except ValueError:
        return int(time.time() * 1000)
