"""Certificates as clients have them: an authority, servers by address, clients by name."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Leaf:
    """A folder with ``tls.crt``, ``tls.key`` and ``ca.crt``."""

    folder: Path

    @property
    def certificate(self) -> str:
        return str(self.folder / "tls.crt")

    @property
    def key(self) -> str:
        return str(self.folder / "tls.key")

    @property
    def trusted(self) -> str:
        return str(self.folder / "ca.crt")


class ClientAuthority:
    """Signs what listeners and clients show.

    With ``identifiers`` the certificates have what Python clients require from Python 3.13 on.
    ``issuer``: the authority above this one, None for a root.
    """

    def __init__(
        self,
        name: str = "clients",
        *,
        identifiers: bool = True,
        issuer: "ClientAuthority | None" = None,
    ) -> None:
        self._identifiers = identifiers
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name.from_rfc4514_string(f"CN={name}")
        signer = issuer or self
        builder = signer._builder(self._name, self._key)
        # Java's clients reject an authority without these two critical extensions.
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(constraints, critical=True)
        self._own = builder.add_extension(usage, critical=True).sign(signer._key, hashes.SHA256())

    def leaf(self, folder: Path, name: str, *, ends: dt.timedelta = _DAY) -> Leaf:
        """Issued to a distinguished name (RFC 4514), and to 127.0.0.1; valid until then from
        now."""
        key = ec.generate_private_key(ec.SECP256R1())
        # Clients verify the address that they dialed, so it has to be in the certificate.
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = (
            self._builder(x509.Name.from_rfc4514_string(name), key, ends)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tls.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        (folder / "tls.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (folder / "ca.crt").write_bytes(self._own.public_bytes(serialization.Encoding.PEM))
        return Leaf(folder)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, ends: dt.timedelta = _DAY
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + ends)
        )
        if not self._identifiers:
            return builder
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(own, critical=False).add_extension(issuer, critical=False)
