"""Trust in servers of others: the API server, brokers of Kafka, registries and key stores.

Python 3.13 made :func:`ssl.create_default_context` refuse certificates that lack an extension which
RFC 5280 requires, such as the authority key identifier. Authorities of existing clusters have none
(those of Amazon EKS, for example), and neither kubectl nor Kafka's clients require it. Python 3.13
also accepts an intermediate authority without its root, as kubectl and Java do. So every context is
created here, with the same rules on all versions of Python. The signature, the validity, the host
name and the purpose of a certificate are verified as before.
"""

import ssl


def trusting_context(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts an authority, or the system's if both are None.

    Raises ``OSError`` (``ssl.SSLError`` is one) if the authority is not readable.
    """
    return with_common_rules(ssl.create_default_context(cafile=cafile, cadata=cadata))  # noqa: TID251


def with_common_rules(context: ssl.SSLContext) -> ssl.SSLContext:
    """Let ``context`` trust an intermediate authority without its root, and accept certificates
    without the extensions that only Python 3.13 requires. Return it.
    """
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
