"""Options about a client's identity towards brokers, and about trust in brokers.

Names and values are Kafka's (``security.protocol`` and so on). Certificates are files, which must
exist on every executor of a Spark job. The result is a plain value that travels with a task.
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
#: Environment variable with the password, if no option contains one.
PASSWORD_VARIABLE = "TIDEMARK_SASL_PASSWORD"


class SecurityError(ValueError):
    """Options that do not fit together; the message says what to write."""


def parse_access(given: Mapping[str, str], environment: Mapping[str, str]) -> KafkaAccess | None:
    """Parse options without their prefix ``kafka.``; None if no broker is named.

    Raises :class:`SecurityError`.
    """
    addresses = parse_bootstrap(given.get("bootstrap.servers", ""))
    # Without brokers no login is needed, so its password may be missing.
    tls, login = parse_security(given, environment if addresses else None, "kafka.")
    return KafkaAccess(addresses, tls, login) if addresses else None


def parse_bootstrap(text: str) -> tuple[str, ...]:
    """Parse comma-separated addresses. Raises :class:`SecurityError`."""
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
    """Return the TLS settings and the login for the option ``security.protocol``.

    Each is None if the protocol does not use it. ``environment``: may have the password; None if
    the caller needs no login. ``prefix``: of the options' names, for messages. Raises
    :class:`SecurityError`.
    """
    protocol = given.get("security.protocol", PLAINTEXT).upper()
    if protocol not in PROTOCOLS:
        raise SecurityError(f"{prefix}security.protocol is {protocol!r}: {', '.join(PROTOCOLS)}")
    tls = login = None
    # Without a CA, the system's certificates are trusted.
    if protocol in {SSL, SASL_SSL}:
        ca, certificate, key = (
            given.get(f"ssl.{name}.location", "") for name in ("ca", "certificate", "key")
        )
        tls = Tls(ca, certificate, key)
    if protocol in {SASL_PLAINTEXT, SASL_SSL} and environment is not None:
        login = _login(given, environment, prefix)
    return tls, login


def _login(given: Mapping[str, str], environment: Mapping[str, str], prefix: str) -> Login:
    """Return the SASL login: mechanism, user name and password.

    Raises :class:`SecurityError` if the mechanism is unknown or a part is missing.
    """
    mechanism = given.get("sasl.mechanism", "SCRAM-SHA-512").upper()
    if mechanism not in PASSWORD_MECHANISMS:
        raise SecurityError(
            f"{prefix}sasl.mechanism is {mechanism!r}: {', '.join(PASSWORD_MECHANISMS)}"
        )
    name = given.get("sasl.username", "")
    # An option is visible in Spark's plans, so the environment is the safer place.
    password = given.get("sasl.password") or environment.get(PASSWORD_VARIABLE, "")
    if not name or not password:
        raise SecurityError(
            f"SASL needs {prefix}sasl.username and {prefix}sasl.password (or the password in "
            f"{PASSWORD_VARIABLE})"
        )
    return Login(mechanism, name, password)
