"""AWS Signature Version 4, for requests to S3 and STS that ``obstore`` does not send."""

import hashlib
import hmac
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """Access key with its secret, and the session's token if they are temporary.

    ``expires_s``: Unix time, None for never. ``source``: origin, for messages.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires_s: float | None = None
    source: str = "configured keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureScope:
    """Region and service that a signature is valid for, and its time (UTC).

    A server refuses a difference of more than some minutes.
    """

    region: str
    service: str
    now: time.struct_time


def signed_headers(
    credentials: AwsCredentials,
    scope: SignatureScope,
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
) -> dict[str, str]:
    """Return ``headers`` (names in lower case) with those of the signature, all of them signed.

    The path and the ordered query of ``url`` are quoted as they are sent.
    """
    parts = urllib.parse.urlsplit(url)
    date = time.strftime("%Y%m%d", scope.now)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", scope.now)
    digest = hashlib.sha256(body).hexdigest()
    token = {"x-amz-security-token": credentials.session_token}
    own = {"host": parts.netloc, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    signed = dict(
        sorted({**headers, **own, **(token if credentials.session_token else {})}.items())
    )
    # The steps of AWS's specification. First the canonical request: exactly what is signed.
    names = ";".join(signed)
    lines = [f"{name}:{value}" for name, value in signed.items()]
    canonical = "\n".join((method, parts.path or "/", parts.query, *lines, "", names, digest))
    # Then the string to sign: the scope limits the signature to a day, a region and a service.
    limits = f"{date}/{scope.region}/{scope.service}/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = "\n".join(("AWS4-HMAC-SHA256", stamp, limits, hashed))
    # Then the signing key, derived from the secret key and the parts of the scope.
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in (date, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    credential = f"{credentials.access_key_id}/{limits}"
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return signed
