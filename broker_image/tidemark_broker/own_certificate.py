"""Cluster id of a broker, read from its certificate.

The cluster id exists only after a controller has created it. A pod template is written earlier, so
the broker reads the id from the certificate that it receives.
"""

from pathlib import Path

from tidemark.tls import identity
from tidemark.tls.files import CERTIFICATE
from tidemark_broker.config_entries import ConfigError


def cluster_named_in(folder: Path, node_id: str) -> str:
    """Return the cluster id in the URI SAN of the certificate in ``folder``.

    ``node_id`` is the broker's configured id. Raises :class:`ConfigError` if the certificate cannot
    be read or is of another broker.
    """
    from cryptography import x509

    path = folder / CERTIFICATE
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        # The URI names of the certificate contain the cluster id and the node id of the broker.
        found = [
            identity.parse(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
        ]
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(
            f"cluster.id is not set, and {path} does not contain it: {error}"
        ) from error
    # The certificate of another broker would authenticate this one under the wrong node id.
    me = found[0] if len(found) == 1 else None
    if me is None or str(me.node_id) != node_id:
        raise ConfigError(
            f"cluster.id is not set, and {path} is of {me or 'no broker'}, not of broker {node_id}"
        )
    return me.cluster_id
