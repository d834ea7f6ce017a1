"""Servers of temporary credentials on loopback: an OpenID issuer, a container agent, metadata.

All credentials are MinIO's own, from its STS, so that MinIO checks their tokens and their expiry.
"""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tidemark.tier.stores import aws_kms, s3_credentials

CLIENT = "tidemark-tests"
ROLE = "arn:aws:iam::123456789012:role/tier"
#: A request: method, path and headers. The answer: status and body.
Answer = Callable[[str, str, Any], tuple[int, bytes]]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve ``answer`` on loopback; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            # Unread bytes would reset the connection when it is closed.
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = _handle

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def forget_providers() -> None:
    """Forget credentials and keys that earlier tests have fetched, as a new process does."""
    s3_credentials._provider.cache_clear()
    aws_kms._held.cache_clear()


class Issuer:
    """OpenID issuer, whose tokens MinIO trusts. ``address`` is set once it serves."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.address = ""

    def answer(self, _method: str, path: str, _headers: Any) -> tuple[int, bytes]:
        """Serve the discovery document and the public key."""
        if path == "/jwks":
            return 200, json.dumps({"keys": [self._public()]}).encode()
        document = {
            "issuer": self.address,
            "jwks_uri": f"{self.address}/jwks",
            "authorization_endpoint": f"{self.address}/none",
            "token_endpoint": f"{self.address}/none",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }
        return 200, json.dumps(document).encode()

    def token(self, *, lives_s: float, policy: str = "readwrite") -> str:
        """Return a token as the kubelet mounts it; MinIO's credentials expire with it."""
        now_s = int(time.time())
        claims = {
            "iss": self.address,
            "sub": "system:serviceaccount:tidemark:brokers",
            "aud": CLIENT,
            "iat": now_s,
            "exp": int(now_s + lives_s),
            "policy": policy,
        }
        head = {"alg": "RS256", "typ": "JWT", "kid": "tests"}
        signed = ".".join(_text(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_text(signature)}"

    def _public(self) -> dict[str, str]:
        numbers = self._key.public_key().public_numbers()
        return {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": "tests",
            "n": _text(numbers.n.to_bytes(256, "big")),
            "e": _text(numbers.e.to_bytes(3, "big")),
        }

    @property
    def minio(self) -> dict[str, str]:
        """Variables with which MinIO trusts this issuer."""
        return {
            "MINIO_IDENTITY_OPENID_CONFIG_URL": f"{self.address}/.well-known/openid-configuration",
            "MINIO_IDENTITY_OPENID_CLIENT_ID": CLIENT,
            "MINIO_IDENTITY_OPENID_CLAIM_NAME": "policy",
        }


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
