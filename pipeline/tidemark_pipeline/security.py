"""A job's options that say how it proves who it is to brokers, and who they are to it.

Names and values are Kafka's (``security.protocol`` and so on). Certificates are files, which must
be there on every executor. What comes of it is a plain value that travels with a task; sockets are
opened from it in :mod:`tidemark_pipeline.brokers`.
"""

from collections.abc import Mapping

from tidemark.kafka_client.access import (
    PASSWORD_MECHANISMS,
    BadAddress,
    KafkaAccess,
    Login,
    Tls,
    parse_address,
)

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
#: Where a password is looked for that stands in no option.
PASSWORD_VARIABLE = "TIDEMARK_SASL_PASSWORD"


class SecurityError(ValueError):
    """Options that do not fit together; the message says what to write."""


def parse_access(given: Mapping[str, str], environment: Mapping[str, str]) -> KafkaAccess | None:
    """From options without their prefix ``kafka.``; None where no broker is named. Raises
    :class:`SecurityError`."""
    addresses = parse_bootstrap(given.get("bootstrap.servers", ""))
    tls, login = parse_security(given, environment if addresses else None, "kafka.")
    return KafkaAccess(addresses, tls, login) if addresses else None


def parse_bootstrap(text: str) -> tuple[str, ...]:
    """Addresses, comma-separated. Raises :class:`SecurityError`."""
    addresses = tuple(address.strip() for address in text.split(",") if address.strip())
    for address in addresses:
        try:
            parse_address(address)
        except BadAddress as error:
            raise SecurityError(f"the broker {error}") from error
    return addresses


def parse_security(
    given: Mapping[str, str], environment: Mapping[str, str] | None, prefix: str
) -> tuple[Tls | None, Login | None]:
    """``prefix``: of the options' names, for messages. ``environment`` None: nobody logs in. Raises
    :class:`SecurityError`."""
    protocol = given.get("security.protocol", PLAINTEXT).upper()
    if protocol not in PROTOCOLS:
        raise SecurityError(f"{prefix}security.protocol is {protocol!r}: {', '.join(PROTOCOLS)}")
    tls = login = None
    if protocol in {SSL, SASL_SSL}:
        ca, certificate, key = (
            given.get(f"ssl.{name}.location", "") for name in ("ca", "certificate", "key")
        )
        tls = Tls(ca, certificate, key)
    if protocol in {SASL_PLAINTEXT, SASL_SSL} and environment is not None:
        login = _login(given, environment, prefix)
    return tls, login


def _login(given: Mapping[str, str], environment: Mapping[str, str], prefix: str) -> Login:
    mechanism = given.get("sasl.mechanism", "SCRAM-SHA-512").upper()
    if mechanism not in PASSWORD_MECHANISMS:
        raise SecurityError(
            f"{prefix}sasl.mechanism is {mechanism!r}: {', '.join(PASSWORD_MECHANISMS)}"
        )
    name = given.get("sasl.username", "")
    password = given.get("sasl.password") or environment.get(PASSWORD_VARIABLE, "")
    if not name or not password:
        raise SecurityError(
            f"SASL needs {prefix}sasl.username and {prefix}sasl.password (or the password in "
            f"{PASSWORD_VARIABLE})"
        )
    return Login(mechanism, name, password)
