"""Which tokens hold: signature, who issued them, for whom, until when, by which key."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tidemark_broker.config_entries import ConfigError
from tidemark_broker.security.errors import AuthenticationFailed
from tidemark_broker.security.tokens import TokenChecker, TokenSettings

ISSUER, AUDIENCE = "https://issuer.example", "tidemark"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def shown(key: rsa.RSAPrivateKey, key_id: str) -> dict[str, Any]:
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**public, "kid": key_id, "alg": "RS256"}


class Issuer:
    """A key set in a file, a clock that a test moves, and a checker of both."""

    def __init__(self, folder: Path, **config: str) -> None:
        self.path = folder / "jwks.json"
        self.show(shown(KEY, "k1"))
        self.now_s = 1000.0
        entries = {
            "sasl.oauthbearer.jwks.endpoint.url": self.path.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": f"other, {AUDIENCE}",
        }
        config = {f"sasl.oauthbearer.{key.replace('_', '.')}": v for key, v in config.items()}
        self.checker = TokenChecker(TokenSettings.of(entries | config), lambda: self.now_s)

    def show(self, *keys: dict[str, Any]) -> None:
        self.path.write_text(json.dumps({"keys": keys}))


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


def token(
    key: Any = KEY, key_id: str | None = "k1", algorithm: str = "RS256", **claims: Any
) -> str:
    said = {"sub": "robot", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 60}
    said |= claims
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(
        {name: value for name, value in said.items() if value is not None},
        key,
        algorithm=algorithm,
        headers=headers,
    )


async def test_a_token_that_holds_names_its_user_and_its_end(issuer: Issuer) -> None:
    until = int(time.time()) + 60
    held = await issuer.checker.check(token(exp=until))
    assert (held.name, held.expires_s) == ("robot", until + 30)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "another audience"},
        {"aud": None},
        {"exp": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"exp": 10**400},
    ],
    ids=str,
)
async def test_a_token_that_does_not_hold(issuer: Issuer, claims: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token(**claims))


@pytest.mark.parametrize(("claim", "in_s"), [("exp", -31), ("nbf", 600)])
async def test_a_token_before_and_after_its_time(issuer: Issuer, claim: str, in_s: int) -> None:
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token(**{claim: int(time.time()) + in_s}))


async def test_a_token_of_another_key(issuer: Issuer) -> None:
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token(OTHER))


async def test_the_clocks_may_differ_a_little(issuer: Issuer) -> None:
    await issuer.checker.check(token(exp=int(time.time()) - 10))


async def test_the_name_may_be_another_claim(tmp_path: Path) -> None:
    checker = Issuer(tmp_path, sub_claim_name="client_id").checker
    assert (await checker.check(token(client_id="batch"))).name == "batch"


async def test_no_signature_is_none(issuer: Issuer) -> None:
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token(None, algorithm="none"))


async def test_a_public_key_is_no_shared_secret(issuer: Issuer) -> None:
    """The oldest trick: HMAC with what everybody can read."""
    issuer.show({"kty": "oct", "kid": "k1", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ"})
    forged = token("secret-secret-secret-secret-1234", algorithm="HS256")
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(forged)


async def test_a_key_that_is_new_is_looked_for_once_in_a_while(issuer: Issuer) -> None:
    await issuer.checker.check(token())
    issuer.show(shown(KEY, "k1"), shown(OTHER, "k2"))
    with pytest.raises(AuthenticationFailed, match="an unknown key"):
        await issuer.checker.check(token(OTHER, "k2"))
    issuer.now_s += 11
    assert (await issuer.checker.check(token(OTHER, "k2"))).name == "robot"


async def test_keys_that_cannot_be_read_for_a_while_still_count(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    await issuer.checker.check(token())
    issuer.path.write_text("not JSON")
    issuer.now_s += 3601
    await issuer.checker.check(token())
    assert "the token keys are not readable" in caplog.text


async def test_a_key_that_is_withdrawn_counts_no_longer(issuer: Issuer) -> None:
    await issuer.checker.check(token())
    issuer.show(shown(OTHER, "k2"))
    issuer.now_s += 3601
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token())


async def test_keys_may_be_of_a_curve(issuer: Issuer) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    issuer.show({**public, "kid": "k1"})
    assert (await issuer.checker.check(token(key, algorithm="ES256"))).name == "robot"


async def test_a_single_key_needs_no_id(issuer: Issuer) -> None:
    assert (await issuer.checker.check(token(key_id=None))).name == "robot"


async def test_what_is_no_token_at_all(issuer: Issuer) -> None:
    for text in ("x", "a.b.c", "e30.e30.e30", ""):
        with pytest.raises(AuthenticationFailed):
            await issuer.checker.check(text)


def test_where_the_keys_are_is_a_url() -> None:
    with pytest.raises(ConfigError, match="must begin with https://"):
        TokenSettings.of({"sasl.oauthbearer.jwks.endpoint.url": "ftp://x"})
