"""Keys of access tokens from an HTTP server, as identity providers publish them."""

import http.server
import json
import threading
import time
from collections.abc import Iterator

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tidemark_broker.security.errors import AuthenticationFailed
from tidemark_broker.security.tokens import TokenChecker, TokenSettings

KEY = ec.generate_private_key(ec.SECP256R1())


class KeyProvider(http.server.ThreadingHTTPServer):
    """``answer``: (status, body) of the next requests; a redirect leads to ``location``."""

    # A JSON Web Key Set with one key.
    def __init__(self) -> None:
        public = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
        keys = [{**public, "kid": "k1", "alg": "ES256", "use": "sig"}]
        self.answer = (200, json.dumps({"keys": keys}).encode())
        self.location = ""
        super().__init__(("127.0.0.1", 0), _KeyHandler)


class _KeyHandler(http.server.BaseHTTPRequestHandler):
    server: KeyProvider

    def do_GET(self) -> None:
        status, body = self.server.answer
        self.send_response(status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the server's log out of the output."""


@pytest.fixture
def provider() -> Iterator[KeyProvider]:
    made = KeyProvider()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def checker(provider: KeyProvider) -> TokenChecker:
    url = f"http://127.0.0.1:{provider.server_address[1]}/jwks"
    return TokenChecker(TokenSettings.of({"sasl.oauthbearer.jwks.endpoint.url": url}))


def token() -> str:
    claims = {"sub": "robot", "exp": int(time.time()) + 60}
    return jwt.encode(claims, KEY, algorithm="ES256", headers={"kid": "k1"})


async def test_token_is_verified_with_keys_from_a_server(provider: KeyProvider) -> None:
    assert (await checker(provider).check(token())).name == "robot"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"later"),
        (200, b"<html>"),
        (200, b'{"keys": []}'),
        (200, b"[]"),
        # One byte above the limit of one MiB.
        (200, b" " * (1 << 20) + b"{}"),
    ],
    ids=["an error", "no JSON", "no keys", "a list", "too large"],
)
async def test_no_token_is_accepted_without_keys(
    provider: KeyProvider, status: int, body: bytes
) -> None:
    provider.answer = (status, body)
    with pytest.raises(AuthenticationFailed, match="an unknown key"):
        await checker(provider).check(token())


async def test_redirect_to_a_file_is_not_followed(provider: KeyProvider) -> None:
    # A redirect to a local file must not be followed.
    provider.answer, provider.location = (302, b""), "file:///etc/passwd"
    with pytest.raises(AuthenticationFailed, match="an unknown key"):
        await checker(provider).check(token())
