"""SCRAM credentials: RFC 7677's example, another client's arithmetic, and salts that stay."""

import base64
import hashlib
import hmac

import pytest
from kafka.net.sasl.scram import ScramClient

from tidemark.wire.users import ScramCredential
from tidemark_operator.users.scram import ITERATIONS, Mechanism, credential, salt_of

SALT_KEY = bytes(range(32))


def signatures(
    stored: ScramCredential, message: bytes, proof: bytes, hash_: str
) -> tuple[bool, bytes]:
    """Return whether the client's proof is right, and the server's signature (RFC 5802, section
    3).
    """
    client_key = bytes(
        left ^ right
        for left, right in zip(proof, hmac.digest(stored.stored_key, message, hash_), strict=True)
    )
    right = hashlib.new(hash_, client_key).digest() == stored.stored_key
    return right, hmac.digest(stored.server_key, message, hash_)


def test_the_example_of_rfc_7677() -> None:
    stored = credential(
        "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), Mechanism.SCRAM_SHA_256, 4096
    )
    # The nonce, the message and the proof are from RFC 7677, section 3.
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = (
        f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        f"c=biws,r={nonce}"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert signatures(stored, message.encode(), proof, "sha256") == (
        True,
        base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="),
    )


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("password", ["pencil", 'with "quotes", = and \\', "Grüße"])
def test_stock_client_proves_the_password_and_verifies_the_server(
    mechanism: Mechanism, password: str
) -> None:
    stored = credential(password, salt_of(SALT_KEY, password, mechanism), mechanism)
    client = ScramClient("alice", password, mechanism.name.replace("_", "-"))
    client.first_message()
    salt = base64.b64encode(stored.salt)
    client.process_server_first_message(b"r=%s-server,s=%s,i=%d" % (client.nonce, salt, ITERATIONS))
    right, signature = signatures(stored, client.auth_message, client.client_proof, mechanism.hash)
    assert right
    client.process_server_final_message(b"v=" + base64.b64encode(signature))


def test_a_salt_stays_as_long_as_its_password_and_no_longer() -> None:
    first = salt_of(SALT_KEY, "pencil", Mechanism.SCRAM_SHA_512)
    assert first == salt_of(SALT_KEY, "pencil", Mechanism.SCRAM_SHA_512)
    others = {
        salt_of(SALT_KEY, "pencils", Mechanism.SCRAM_SHA_512),
        salt_of(SALT_KEY, "pencil", Mechanism.SCRAM_SHA_256),
        salt_of(bytes(32), "pencil", Mechanism.SCRAM_SHA_512),
    }
    assert first not in others
    assert len(others) == 3
    assert {len(salt) for salt in (first, *others)} == {32}


def test_keys_are_in_no_repr() -> None:
    stored = credential("pencil", b"salt", Mechanism.SCRAM_SHA_256, 1)
    assert repr(stored.stored_key) not in repr(stored)
    assert repr(stored.server_key) not in repr(stored)
