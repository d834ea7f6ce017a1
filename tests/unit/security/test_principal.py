"""Principals of certificates, written as Java's ``X500Principal`` does. The expected texts come
from Java."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tidemark_broker.security import principal
from tidemark_broker.security.acls import ANONYMOUS
from tidemark_broker.security.errors import AuthenticationFailed

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(*parts: tuple[x509.ObjectIdentifier, str]) -> bytes:
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])
    # Self-signed: only the subject matters here.
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        (
            [
                (NameOID.ORGANIZATION_NAME, "Acme, Inc."),
                (NameOID.ORGANIZATIONAL_UNIT_NAME, "Data"),
                (NameOID.COMMON_NAME, "loader"),
            ],
            r"CN=loader,OU=Data,O=Acme\, Inc.",
        ),
        (
            [
                (NameOID.COUNTRY_NAME, "DE"),
                (NameOID.LOCALITY_NAME, "a+b"),
                # Each character that RFC 2253 escapes, including a leading # and a trailing
                # space.
                (NameOID.COMMON_NAME, '#x; <y> "q" \\ '),
            ],
            r"CN=\#x\; \<y\> \"q\" \\\ ,L=a\+b,C=DE",
        ),
        (
            [
                (NameOID.DOMAIN_COMPONENT, "example"),
                (NameOID.USER_ID, "u1"),
                (NameOID.COMMON_NAME, "ünï"),
            ],
            "CN=ünï,UID=u1,DC=example",
        ),
        (
            [
                (NameOID.STATE_OR_PROVINCE_NAME, "B"),
                (NameOID.STREET_ADDRESS, "S 1"),
                (NameOID.COMMON_NAME, " lead=ing"),
            ],
            r"CN=\ lead\=ing,STREET=S 1,ST=B",
        ),
        (
            # Attributes without a keyword in RFC 2253 are written as an OID with the DER value in
            # hex.
            [(NameOID.EMAIL_ADDRESS, "a@b.c"), (NameOID.COMMON_NAME, "mail")],
            "CN=mail,1.2.840.113549.1.9.1=#16056140622e63",
        ),
    ],
)
def test_a_subject_is_written_as_in_java(
    parts: list[tuple[x509.ObjectIdentifier, str]], written: str
) -> None:
    assert principal.of_certificate(certificate(*parts)) == f"User:{written}"


def test_a_long_value_without_keyword_is_written_completely() -> None:
    name = principal.of_certificate(certificate((NameOID.EMAIL_ADDRESS, "a" * 200)))
    assert name == f"User:1.2.840.113549.1.9.1=#1681c8{(b'a' * 200).hex()}"


def test_a_missing_certificate_or_subject_is_anonymous() -> None:
    assert principal.of_certificate(None) == ANONYMOUS
    assert principal.of_certificate(certificate()) == ANONYMOUS


def test_an_invalid_certificate_is_rejected() -> None:
    with pytest.raises(AuthenticationFailed):
        principal.of_certificate(b"\x30\x00")


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.7:5000", "10.0.0.7"),
        ("::ffff:10.0.0.7:5000", "10.0.0.7"),
        ("fd00:0:0:0:0:0:0:7:5000", "fd00::7"),
        ("fe80::1%eth0:5000", "fe80::1"),
        ("?", ""),
    ],
)
def test_a_host_is_written_as_in_acls(peer: str, host: str) -> None:
    """An IPv4 address of a dual-stack socket is written as IPv4, as in Java."""
    assert principal.host_of(peer) == host
