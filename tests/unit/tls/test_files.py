"""Permitted contents of a folder of certificates."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.security.client_certificates import ClientAuthority
from tidemark.tls.files import ListenerFiles, NoCertificates


def test_an_encrypted_key_is_refused_without_a_password_prompt(tmp_path: Path) -> None:
    """OpenSSL would prompt on the terminal, during a connection, and wait."""
    leaf = ClientAuthority().leaf(tmp_path / "listener", "CN=broker")
    # The same key is accepted before its encryption.
    assert ListenerFiles(leaf.folder, ssl.CERT_NONE).context()
    path = Path(leaf.key)
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(NoCertificates, match="no usable certificate"):
        ListenerFiles(leaf.folder, ssl.CERT_NONE).context()
