"""Validation of bearer tokens: signature, issuer, audience, expiry, and key."""

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


class KeySetIssuer:
    """Key set in a file, a clock that a test moves, and a checker that uses both."""

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
def issuer(tmp_path: Path) -> KeySetIssuer:
    return KeySetIssuer(tmp_path)


def token(
    key: Any = KEY, key_id: str | None = "k1", algorithm: str = "RS256", **claims: Any
) -> str:
    payload = {"sub": "robot", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 60}
    payload |= claims
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(
        {name: value for name, value in payload.items() if value is not None},
        key,
        algorithm=algorithm,
        headers=headers,
    )


async def test_a_valid_token_has_a_user_and_an_expiry(issuer: KeySetIssuer) -> None:
    until = int(time.time()) + 60
    accepted = await issuer.checker.check(token(exp=until))
    # 30 s of clock skew are allowed, as in Kafka's sasl.oauthbearer.clock.skew.seconds.
    assert (accepted.name, accepted.expires_s) == ("robot", until + 30)


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
async def test_tokens_with_invalid_claims_are_rejected(
    issuer: KeySetIssuer, claims: dict[str, Any]
) -> None:
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token(**claims))


@pytest.mark.parametrize(("claim", "in_s"), [("exp", -31), ("nbf", 600)])
async def test_tokens_are_rejected_before_and_after_their_validity(
    issuer: KeySetIssuer, claim: str, in_s: int
) -> None:
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token(**{claim: int(time.time()) + in_s}))


async def test_a_token_of_another_key_is_rejected(issuer: KeySetIssuer) -> None:
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token(OTHER))


async def test_a_small_clock_skew_is_allowed(issuer: KeySetIssuer) -> None:
    await issuer.checker.check(token(exp=int(time.time()) - 10))


async def test_the_user_name_may_come_from_another_claim(tmp_path: Path) -> None:
    checker = KeySetIssuer(tmp_path, sub_claim_name="client_id").checker
    assert (await checker.check(token(client_id="batch"))).name == "batch"


async def test_an_unsigned_token_is_rejected(issuer: KeySetIssuer) -> None:
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token(None, algorithm="none"))


async def test_a_symmetric_key_in_the_key_set_is_rejected(issuer: KeySetIssuer) -> None:
    """A known attack: an HMAC with data that is public."""
    issuer.show({"kty": "oct", "kid": "k1", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ"})
    # Signed with the secret of the oct key, which every reader of the key set has.
    forged = token("secret-secret-secret-secret-1234", algorithm="HS256")
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(forged)


async def test_unknown_keys_reload_the_key_set_at_intervals(issuer: KeySetIssuer) -> None:
    await issuer.checker.check(token())
    issuer.show(shown(KEY, "k1"), shown(OTHER, "k2"))
    # Tokens with invented key ids must not cause a request to the issuer each.
    with pytest.raises(AuthenticationFailed, match="an unknown key"):
        await issuer.checker.check(token(OTHER, "k2"))
    issuer.now_s += 11
    assert (await issuer.checker.check(token(OTHER, "k2"))).name == "robot"


async def test_known_keys_stay_valid_while_the_key_set_is_unreadable(
    issuer: KeySetIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    await issuer.checker.check(token())
    issuer.path.write_text("not JSON")
    # The key set is refreshed every hour.
    issuer.now_s += 3601
    await issuer.checker.check(token())
    assert "the token keys are not readable" in caplog.text


async def test_a_withdrawn_key_is_rejected(issuer: KeySetIssuer) -> None:
    await issuer.checker.check(token())
    issuer.show(shown(OTHER, "k2"))
    issuer.now_s += 3601
    with pytest.raises(AuthenticationFailed):
        await issuer.checker.check(token())


async def test_elliptic_curve_keys_are_accepted(issuer: KeySetIssuer) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    issuer.show({**public, "kid": "k1"})
    assert (await issuer.checker.check(token(key, algorithm="ES256"))).name == "robot"


async def test_a_single_key_needs_no_id(issuer: KeySetIssuer) -> None:
    assert (await issuer.checker.check(token(key_id=None))).name == "robot"


async def test_malformed_tokens_are_rejected(issuer: KeySetIssuer) -> None:
    for text in ("x", "a.b.c", "e30.e30.e30", ""):
        with pytest.raises(AuthenticationFailed):
            await issuer.checker.check(text)


def test_the_key_set_must_be_a_valid_url() -> None:
    with pytest.raises(ConfigError, match="must begin with https://"):
        TokenSettings.of({"sasl.oauthbearer.jwks.endpoint.url": "ftp://x"})
