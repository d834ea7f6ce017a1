"""Multipart uploads of an S3 that have begun and not ended: finding and aborting them.

A copier that is killed within an upload leaves its parts in the bucket, paid for and seen by no
listing of objects. ``obstore`` does not offer these two requests (``s3_requests``). Uploads are
listed without a prefix and filtered here: MinIO takes a prefix for the whole name of one object.
"""

import time
from collections.abc import Iterator
from datetime import datetime

from tidemark.reasons import Reason
from tidemark.tier.objects import StoreUnavailable, UnfinishedUpload
from tidemark.tier.s3_config import S3Config
from tidemark.tier.s3_requests import S3Response, elements, parsed, send, text_of


def unfinished(config: S3Config, bucket: str) -> Iterator[UnfinishedUpload]:
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


def abort(config: S3Config, bucket: str, upload: UnfinishedUpload) -> None:
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
