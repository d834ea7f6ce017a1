"""Key-encryption keys that AWS KMS has encrypted: each process has KMS decrypt them.

A process that uses such a key requests its decryption once, and then every five minutes, however
many segments it reads or writes. So the number of requests depends on processes and keys only. If
KMS does not answer, the decrypted key stays in use for an hour. If KMS refuses the key (disabled,
deleted, no permission), it is dropped at once.

The process's own identity on AWS signs the requests (``aws_identity``). They are sent to the region
in the key's ARN, or to the address in AWS_ENDPOINT_URL_KMS.
"""

import base64
import functools
import http.client
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemark.reasons import Reason
from tidemark.tier.stores.aws_identity import CredentialsMissing
from tidemark.tier.stores.aws_signature import SignatureScope, signed_headers
from tidemark.tier.stores.http_exchange import HttpLimits, HttpRequest, exchange
from tidemark.tier.stores.objects import StoreUnavailable
from tidemark.tier.stores.s3_credentials import ambient_provider

logger = logging.getLogger(__name__)

#: Time after which a decrypted key is requested again, and for which it is used without an answer.
RENEW_S, HELD_S = 300.0, 3600.0
#: Pause after a failure: while the key is in use, and while there is none.
_RETRY_S = 10.0
_FAILURE_S = 2.0
_LIMITS = HttpLimits(wait_s=5.0, answer_s=10.0, answer_bytes=64 << 10)
#: Size of a key, of AES-256.
_KEY_BYTES = 32
#: Limit of KMS for what it decrypts.
_CIPHERTEXT_BYTES_MAX = 6144
_ARN = re.compile(
    "arn:aws[a-z-]{0,16}:kms:([a-z0-9-]{1,64}):[0-9]{12}:(?:key|alias)/[A-Za-z0-9/_-]{1,256}"
)
#: Answers after which a decrypted key must not be used any more, with what to do.
_ENABLE = "Enable the key in KMS, or cancel its deletion"
_CORRECT = "Correct the line of the key, or restore it from a copy"
_REFUSED = {
    "AccessDeniedException": "Allow the identity kms:Decrypt, in its policy and in that of the key",
    "DisabledException": _ENABLE,
    "KMSInvalidStateException": _ENABLE,
    "NotFoundException": _CORRECT,
    "InvalidCiphertextException": _CORRECT,
    "IncorrectKeyException": _CORRECT,
    "InvalidKeyUsageException": _CORRECT,
}


@dataclass(slots=True)
class KmsCounts:
    """Requests of this process to KMS, and those that failed. Exact enough for metrics."""

    requests: int = 0
    errors: int = 0


COUNTS = KmsCounts()


class EncryptionKeyUnavailable(StoreUnavailable):
    """KMS does not decrypt a key-encryption key. ``refused``: it has answered that it will not."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message, reason=Reason.ENCRYPTION_KEY_UNAVAILABLE, retriable=True)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class KmsKey:
    """Key that KMS has encrypted. ``arn``: of the key in KMS, or of an alias."""

    arn: str
    ciphertext: bytes

    @classmethod
    def parse(cls, text: str) -> "KmsKey | None":
        """Parse an ARN and the ciphertext in base64, which follows after a space."""
        arn, _, encoded = text.partition(" ")
        try:
            ciphertext = base64.b64decode(encoded.strip(), validate=True)
        except ValueError:
            return None
        is_valid = _ARN.fullmatch(arn) and 0 < len(ciphertext) <= _CIPHERTEXT_BYTES_MAX
        return cls(arn, ciphertext) if is_valid else None

    def to_text(self) -> str:
        """Return the text that ``parse`` reads."""
        return f"{self.arn} {base64.b64encode(self.ciphertext).decode()}"

    def decrypted(self) -> bytes:
        """Return the key. Blocks; raises EncryptionKeyUnavailable."""
        return _held(self).current()


@dataclass(frozen=True, slots=True)
class _HeldKey:
    """Decrypted key. It is requested again at ``renew_s``, and is not used after ``until_s``."""

    key: bytes = field(repr=False)
    renew_s: float
    until_s: float


class _DecryptedKey:
    """Key in memory, which KMS decrypts from time to time. Thread-safe."""

    def __init__(self, key: KmsKey, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._key, self._monotonic = key, monotonic
        self._lock = threading.Lock()
        self._held: _HeldKey | None = None
        #: The last failure, and until when it is repeated instead of another request.
        self._failure: tuple[EncryptionKeyUnavailable, float] | None = None

    def current(self) -> bytes:
        """Return the key. Blocks; raises EncryptionKeyUnavailable."""
        held, now_s = self._held, self._monotonic()
        if held is not None and now_s < held.renew_s:
            return held.key
        # One thread requests it. Others do not wait for it while the held key may be used.
        usable = held is not None and now_s < held.until_s
        if not self._lock.acquire(blocking=not usable):
            assert held is not None
            return held.key
        try:
            return self._renewed()
        finally:
            self._lock.release()

    def _renewed(self) -> bytes:
        """Request the key, unless another thread just has; the lock is held."""
        held, now_s = self._held, self._monotonic()
        if held is not None and now_s < held.renew_s:
            return held.key
        # Every thread would otherwise wait for the same failure.
        if self._failure is not None and now_s < self._failure[1]:
            error = self._failure[0]
            raise EncryptionKeyUnavailable(str(error), refused=error.refused)
        try:
            key = _request(self._key)
        except EncryptionKeyUnavailable as error:
            now_s = self._monotonic()
            # A service that is down for minutes must not stop what still has the key.
            if held is not None and not error.refused and now_s < held.until_s:
                logger.warning("%s. The key stays in use for now", error)
                self._held = _HeldKey(held.key, min(now_s + _RETRY_S, held.until_s), held.until_s)
                return held.key
            self._held, self._failure = None, (error, now_s + _FAILURE_S)
            raise
        self._failure = None
        self._held = _HeldKey(key, now_s + RENEW_S, now_s + HELD_S)
        return key


@functools.lru_cache(maxsize=256)
def _held(key: KmsKey) -> _DecryptedKey:
    return _DecryptedKey(key)


def _request(key: KmsKey) -> bytes:
    """Have KMS decrypt a key. Blocks; raises EncryptionKeyUnavailable."""
    match = _ARN.fullmatch(key.arn)
    assert match is not None
    region = match[1]
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    default = f"https://kms.{region}.{domain}"
    url = (os.environ.get("AWS_ENDPOINT_URL_KMS") or default).rstrip("/") + "/"
    # With the ARN, KMS refuses what another key has encrypted.
    ciphertext = base64.b64encode(key.ciphertext).decode()
    body = json.dumps({"KeyId": key.arn, "CiphertextBlob": ciphertext}).encode()
    headers = {
        "content-type": "application/x-amz-json-1.1",
        "x-amz-target": "TrentService.Decrypt",
    }
    COUNTS.requests += 1
    try:
        scope = SignatureScope(region=region, service="kms", now=time.gmtime())
        credentials = ambient_provider(region).current()
        signed = signed_headers(credentials, scope, "POST", url, body, headers)
        request = HttpRequest(method="POST", url=url, headers=signed, body=body)
        answer = exchange(request, _LIMITS)
        found = json.loads(answer.body)
        if answer.status == 200:
            return _checked(base64.b64decode(found["Plaintext"]), key)
        # Some services put a namespace before the name.
        code = str(found["__type"]).rpartition("#")[2]
        text = f"{code}: {found.get('message') or found.get('Message') or ''}"[:300]
    except CredentialsMissing as error:
        raise _failed(key, str(error), "") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed(key, f"{url} gives no answer: {error}", "") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise _failed(key, f"{url} answers {answer.status}, and not as KMS", "") from error
    raise _failed(key, f"{url} answers {text}", _REFUSED.get(code, ""))


def _checked(plaintext: bytes, key: KmsKey) -> bytes:
    """Return the decrypted key if it is one of AES-256."""
    if len(plaintext) == _KEY_BYTES:
        return plaintext
    raise _failed(key, f"it has {len(plaintext)} bytes, not {_KEY_BYTES}", _CORRECT)


def _failed(key: KmsKey, problem: str, remedy: str) -> EncryptionKeyUnavailable:
    """Count a failed request, and return its error. ``remedy`` empty: it may pass by itself."""
    COUNTS.errors += 1
    advice = remedy or "Check the network, the address and the identity of the process"
    return EncryptionKeyUnavailable(
        f"the key {key.arn} of KMS does not decrypt an encryption key of the remote storage: "
        f"{problem}. {advice}. Requests are repeated, and nothing is lost",
        refused=bool(remedy),
    )
