"""Trust in servers of others: the API server, brokers of Kafka, registries and key stores.

Python 3.13 made :func:`ssl.create_default_context` refuse certificates that lack an extension which
RFC 5280 requires, such as the authority key identifier. Authorities of existing clusters have none
(those of Amazon EKS, for example), and neither kubectl nor Kafka's clients require it. So every
context is created here, with the same rules on all versions of Python. The signature, the validity,
the host name and the purpose of a certificate are verified as before.
"""

import ssl


def trusting_context(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts an authority, or the system's if both are None.

    Raises ``OSError`` (``ssl.SSLError`` is one) if the authority is not readable.
    """
    return without_strict_extensions(ssl.create_default_context(cafile=cafile, cadata=cadata))  # noqa: TID251


def without_strict_extensions(context: ssl.SSLContext) -> ssl.SSLContext:
    """Let ``context`` accept certificates without the optional extensions of RFC 5280."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
