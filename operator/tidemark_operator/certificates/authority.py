"""Keys and certificates: a cluster's authority, and the leaves that it issues. Time is an argument.

ECDSA on P-256, which every TLS stack supports. A leaf has one name (see
:mod:`tidemark.tls.identity`) and serves both ends of a connection.
"""

import datetime as dt
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidemark.tls.identity import TlsIdentity, parse

AUTHORITY_LIFE = dt.timedelta(days=5 * 365)
LEAF_LIFE = dt.timedelta(days=90)
#: Tolerated difference between the clocks of two machines.
_SKEW = dt.timedelta(minutes=15)
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


class BadCertificate(ValueError):
    """Stored data that is not a key or certificate of ours."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes

    @property
    def parsed(self) -> x509.Certificate:
        """Parsed certificate; raises :class:`BadCertificate`."""
        return read_certificate(self.certificate)

    @property
    def serial(self) -> str:
        """Serial number in hex."""
        return f"{self.parsed.serial_number:x}"


def read_certificate(pem: bytes) -> x509.Certificate:
    """Return one certificate; raises :class:`BadCertificate`."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise BadCertificate(f"invalid certificate: {error}") from error


def split(bundle: bytes) -> tuple[bytes, ...]:
    """Return the certificates of a bundle, each in PEM; raises :class:`BadCertificate`."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError as error:
        raise BadCertificate(f"invalid certificates: {error}") from error
    return tuple(_pem(certificate) for certificate in found)


def make_authority(
    cluster_id: str, now: dt.datetime, life: dt.timedelta = AUTHORITY_LIFE
) -> KeyPair:
    """Return a new certificate authority (key and self-signed certificate) of a cluster.

    ``now``: start of its validity (aware, UTC), ``life``: its length.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tidemark"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, _unit(cluster_id)),
            # Distinguishes two authorities of a cluster during a rotation.
            x509.NameAttribute(NameOID.COMMON_NAME, f"authority {serial:x}"[:64]),
        ]
    )
    usage = _usage(sign_certificates=True)
    built = (
        _builder(name, name, key.public_key(), serial, now, life)
        # No intermediate authorities: a stolen leaf can never sign another.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(_pem(built), _key_pem(key))


def issue(
    authority: KeyPair, who: TlsIdentity, now: dt.datetime, life: dt.timedelta = LEAF_LIFE
) -> KeyPair:
    """Return a leaf for one broker, or for a controller; it expires with its authority at the
    latest.
    """
    common = "controller" if who.node_id is None else f"broker {who.node_id}"
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(who.uri)])
    return _issue(authority, common, (_SERVER, _CLIENT), names, now, life)


def issue_to_client(
    authority: KeyPair, name: str, now: dt.datetime, life: dt.timedelta = LEAF_LIFE
) -> KeyPair:
    """Return a leaf for a user of the cluster with subject ``CN=<name>`` (at most 64 characters).

    It serves only a connection's client end, and has no name that :mod:`tidemark.tls.identity`
    knows.
    """
    return _issue(authority, name, (_CLIENT,), None, now, life)


def _issue(
    authority: KeyPair,
    common: str,
    purposes: tuple[x509.ObjectIdentifier, ...],
    names: x509.SubjectAlternativeName | None,
    now: dt.datetime,
    life: dt.timedelta,
) -> KeyPair:
    """Return a new key with an end-entity certificate for it, signed by ``authority``.

    ``common``: the subject's common name. ``names``: the subject alternative names of brokers and
    operators, None for clients.
    """
    issuer, signing = authority.parsed, _signing_key(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]),
            issuer.subject,
            key.public_key(),
            x509.random_serial_number(),
            now,
            # A leaf that outlives its authority would be rejected, and never be due for renewal.
            min(life, issuer.not_valid_after_utc - now),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
    )
    # A client's leaf has no URI name, so no broker takes it for a broker's.
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return KeyPair(_pem(builder.sign(signing, hashes.SHA256())), _key_pem(key))


def _signing_key(authority: KeyPair) -> ec.EllipticCurvePrivateKey:
    try:
        signing = serialization.load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadCertificate(f"invalid private key: {error}") from error
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise BadCertificate("unsupported type of the CA's private key")
    return signing


def is_due(pair: KeyPair, now: dt.datetime) -> bool:
    """Return whether a certificate has to be renewed: two thirds of its life are over."""
    certificate = pair.parsed
    # The certificate was backdated for skewed clocks; its life starts at its issue.
    begun, ends = certificate.not_valid_before_utc + _SKEW, certificate.not_valid_after_utc
    return now >= begun + (ends - begun) * 2 / 3


def is_issued_by(leaf: KeyPair, authority: KeyPair) -> bool:
    """Return whether this authority signed the leaf."""
    try:
        leaf.parsed.verify_directly_issued_by(authority.parsed)
    except (ValueError, TypeError, BadCertificate):
        return False
    except Exception as error:  # noqa: BLE001 - InvalidSignature is not a ValueError
        del error
        return False
    return True


def is_of_cluster(leaf: KeyPair, cluster_id: str) -> bool:
    """Return whether an authority of that cluster issued the leaf, by its name only."""
    try:
        units = leaf.parsed.issuer.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    except ValueError:
        return False
    return [unit.value for unit in units] == [_unit(cluster_id)]


def _unit(cluster_id: str) -> str:
    return cluster_id[:64]


def is_for(leaf: KeyPair, who: TlsIdentity) -> bool:
    """Return whether the leaf names exactly ``who`` and has the matching key."""
    try:
        certificate = leaf.parsed
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return [parse(uri) for uri in uris] == [who] and keys_match(leaf)


def is_for_client(leaf: KeyPair, name: str) -> bool:
    """Return whether it is the leaf of the user ``name``, with the matching key."""
    try:
        subject = leaf.parsed.subject
    except ValueError:
        return False
    # Compared as text, because the encodings of equal names may differ.
    return subject.rfc4514_string() == x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    ).rfc4514_string() and keys_match(leaf)


def keys_match(pair: KeyPair) -> bool:
    """Return whether certificate and key belong together."""
    try:
        key = serialization.load_pem_private_key(pair.key, password=None)
        return _public(key) == _public(pair.parsed)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _public(holder: object) -> bytes:
    public = holder.public_key()  # type: ignore[attr-defined]
    encoded: bytes = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    now: dt.datetime,
    life: dt.timedelta,
) -> x509.CertificateBuilder:
    """Return a certificate builder with the fields that all certificates have."""
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
