"""S3 deletes: DeleteObjects with a result for each key, and DeleteObject.

``obstore`` sends DeleteObjects even for a single key, and reports several keys as one failure. S3
answers 200 even if it refused some keys, and names them in the body: all other keys are deleted.
Some stores do not have this request (501) or require a header (400 for a missing Content-MD5). The
caller then deletes keys one by one.
"""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from tidemark.tier.s3_config import S3Config
from tidemark.tier.s3_requests import S3Response, elements, parsed, send, text_of

#: S3's limit.
KEYS_AT_ONCE = 1000
_DENIED = (401, 403)
_GONE = frozenset({"NoSuchKey", "NoSuchVersion"})


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
