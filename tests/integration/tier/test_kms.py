"""Encryption keys that AWS KMS decrypts, on a server that implements it."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.aws import forget_providers, serving
from tests.clouds import KmsServer
from tidemark.tier.stores.aws_kms import (
    COUNTS,
    HELD_S,
    RENEW_S,
    EncryptionKeyUnavailable,
    KmsKey,
    _DecryptedKey,
)
from tidemark.tier.stores.config import from_options
from tidemark.tier.stores.key_ring import KeyRing

CONTEXT = b"context"


@pytest.fixture(autouse=True)
def identity(kms: KmsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Access key of this process on AWS."""
    found = kms.environment
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    forget_providers()
    yield found["AWS_ACCESS_KEY_ID"]
    kms.deny()
    forget_providers()


@pytest.fixture
def arn(kms: KmsServer) -> str:
    return kms.create_key()


@pytest.fixture
def key(kms: KmsServer, arn: str) -> KmsKey:
    found = KmsKey.parse(kms.encrypted_key(arn))
    assert found is not None
    return found


class RenewalClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_keys_in_a_file_encrypt_with_one_request(kms: KmsServer, arn: str, tmp_path: Path) -> None:
    file = tmp_path / "encryptionKeys"
    file.write_text(f"# of KMS\nk1: {kms.encrypted_key(arn)}\n", encoding="ascii")
    options = {"path": str(tmp_path), "encryptionKeysLocation": str(file)}
    ring = from_options(options, {}).key_ring
    before, wrapped = COUNTS.requests, []
    threads = [
        threading.Thread(target=lambda: wrapped.append(ring.wrap(b"d" * 32, CONTEXT)))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert COUNTS.requests - before == 1
    # Another process reads the same text, and decrypts what this one has encrypted.
    forget_providers()
    other = KeyRing.parse(ring.to_text())
    for wrapped_key in wrapped:
        assert other.is_active("k1", wrapped_key)
        assert other.unwrap("k1", wrapped_key, CONTEXT, "segment") == b"d" * 32
    assert COUNTS.requests - before == 2


def test_alias_names_the_key(kms: KmsServer, arn: str, key: KmsKey) -> None:
    name = f"alias/tier-{arn[-12:]}"
    kms.call("CreateAlias", AliasName=name, TargetKeyId=arn)
    alias = replace(key, arn=f"{arn.rpartition(':')[0]}:{name}")
    assert alias.decrypted() == key.decrypted()


@pytest.mark.parametrize(
    ("refuse", "code", "advice"),
    [
        ("disable", "DisabledException", "Enable the key in KMS"),
        ("delete", "KMSInvalidStateException", "cancel its deletion"),
        ("deny", "AccessDeniedException", "Allow the identity kms:Decrypt"),
    ],
)
def test_refused_key_is_dropped_at_the_next_request(
    kms: KmsServer, arn: str, key: KmsKey, identity: str, refuse: str, code: str, advice: str
) -> None:
    clock = RenewalClock()
    held = _DecryptedKey(key, clock)
    plain = held.current()
    refusals: dict[str, Callable[[], object]] = {
        "disable": lambda: kms.call("DisableKey", KeyId=arn),
        "delete": lambda: kms.call("ScheduleKeyDeletion", KeyId=arn),
        "deny": lambda: kms.deny(identity),
    }
    refusals[refuse]()
    clock.now_s = RENEW_S - 1
    assert held.current() == plain
    clock.now_s = RENEW_S
    before = COUNTS.requests, COUNTS.errors
    for _ in range(3):
        with pytest.raises(EncryptionKeyUnavailable, match=rf"{arn}.*{code}.*{advice}") as caught:
            held.current()
        assert (caught.value.reason, caught.value.refused) == ("EncryptionKeyUnavailable", True)
    # The failure is repeated without a request for a short time.
    assert (COUNTS.requests, COUNTS.errors) == (before[0] + 1, before[1] + 1)
    if refuse == "delete":
        kms.call("CancelKeyDeletion", KeyId=arn)
    kms.call("EnableKey", KeyId=arn)
    kms.deny()
    clock.now_s += 10
    assert held.current() == plain


def test_key_is_held_while_kms_does_not_answer(
    kms: KmsServer, key: KmsKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = RenewalClock()
    held = _DecryptedKey(key, clock)
    plain = held.current()
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1")
    for now_s in (RENEW_S, RENEW_S + 60, HELD_S - 1):
        clock.now_s = now_s
        assert held.current() == plain
    clock.now_s = HELD_S
    with pytest.raises(EncryptionKeyUnavailable, match=r"gives no answer.*Check the network"):
        held.current()
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", kms.endpoint)
    clock.now_s += 10
    assert held.current() == plain


def test_ciphertext_of_another_key_is_refused(kms: KmsServer, arn: str, key: KmsKey) -> None:
    other = kms.create_key()
    with pytest.raises(EncryptionKeyUnavailable, match="Correct the line of the key") as caught:
        replace(key, arn=other).decrypted()
    assert caught.value.refused
    short = kms.call("GenerateDataKeyWithoutPlaintext", KeyId=arn, KeySpec="AES_128")
    found = KmsKey.parse(f"{arn} {short['CiphertextBlob']}")
    assert found is not None
    with pytest.raises(EncryptionKeyUnavailable, match="it has 16 bytes, not 32"):
        found.decrypted()


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (200, b"<html>", "gives no answer"),
        (200, b"[]", "answers 200, and not as KMS"),
        (503, b"busy", "gives no answer"),
        (400, json.dumps({"__type": "a.b#ThrottlingException"}).encode(), "ThrottlingException"),
    ],
)
def test_unusual_answers_do_not_end_the_use_of_a_key(
    key: KmsKey, status: int, body: bytes, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = RenewalClock()
    held = _DecryptedKey(key, clock)
    plain = held.current()
    with serving(lambda *_: (status, body)) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", address)
        with pytest.raises(EncryptionKeyUnavailable, match=text) as caught:
            _DecryptedKey(key, clock).current()
        assert not caught.value.refused
        clock.now_s = RENEW_S
        assert held.current() == plain


def test_process_without_an_identity_is_reported(
    key: KmsKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    forget_providers()
    with pytest.raises(EncryptionKeyUnavailable, match=r"no credentials of AWS .*AWS_ACCESS_KEY"):
        key.decrypted()
