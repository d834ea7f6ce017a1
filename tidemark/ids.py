"""Kafka's text form of a UUID (its class ``Uuid``): base64url without padding, 22 characters.

Ids of topics, segments and log directories are written so wherever they are text: in the tier's
keys and manifests, in ``partition.metadata``, in slices and statuses.
"""

import base64
import binascii
import uuid


def id_text(value: uuid.UUID) -> str:
    """Return an id in the form in which Kafka prints it: 22 characters of base64url."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def parse_id(text: str) -> uuid.UUID:
    """Inverse of :func:`id_text`. Raises ValueError for anything else."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not an id of 22 base64url characters") from error
    if len(raw) != 16 or len(text) != 22:
        raise ValueError(f"{text!r} is not an id of 22 base64url characters")
    return uuid.UUID(bytes=raw)
