"""Which cluster a broker is of, where only its certificate says so.

The id of a cluster is known once a controller has made it; what runs brokers from a template
written before (a pod, say) is handed the certificate then, and need not be told twice.
"""

from pathlib import Path

from tidemark.tls import identity
from tidemark.tls.files import CERTIFICATE
from tidemark_broker.config_entries import ConfigError


def cluster_named_in(folder: Path, node_id: str) -> str:
    """The cluster id in the certificate of a folder, which has to be this broker's. Raises
    :class:`ConfigError`."""
    from cryptography import x509

    path = folder / CERTIFICATE
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = [
            identity.parse(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
        ]
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(
            f"cluster.id is not given, and {path} does not say it: {error}"
        ) from error
    me = found[0] if len(found) == 1 else None
    if me is None or str(me.node_id) != node_id:
        raise ConfigError(
            f"cluster.id is not given, and {path} is of {me or 'nobody'}, not of broker {node_id}"
        )
    return me.cluster_id
