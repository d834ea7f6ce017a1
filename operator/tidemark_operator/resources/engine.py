"""``Cluster.spec.engine``: the store of the topics, Tidemark's brokers or an existing Apache Kafka.

For Apache Kafka a Cluster contains only its address and the operator's credentials. Its brokers and
their configuration are managed elsewhere.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tidemark.configuration.broker_keys import DISABLE_POLICY, UNDER_REPLICATED_CREATION
from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.references import SecretRef
from tidemark_operator.resources.scalars import Quantity
from tidemark_operator.resources.schema import Rule, SpecModel

#: Keys of ``Cluster.spec.config`` that the operator itself uses, with any engine.
OWN_KEYS = (DISABLE_POLICY, UNDER_REPLICATED_CREATION)
#: Keys of the Secrets that a Kafka engine names.
USERNAME, PASSWORD, TOKEN = "username", "password", "token"
CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
_ADDRESS = r"([^\s:,\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"


class TidemarkEngine(SpecModel):
    """Tidemark's own brokers."""


class KafkaTls(SpecModel):
    """TLS settings for the connection to Kafka.

    The broker certificate must name the host in bootstrapServers.
    """

    ca_secret_ref: SecretRef | None = None
    """Secret whose key ca.crt has the CA certificates of the brokers. Default: the system's
    certificate authorities."""
    certificate_secret_ref: SecretRef | None = None
    """Secret with the keys tls.crt and tls.key (type kubernetes.io/tls). The operator presents this
    client certificate."""


class KafkaSasl(SpecModel):
    """User that the operator authenticates as."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """SASL mechanism, by Kafka's names."""
    credentials_secret_ref: SecretRef
    """Secret with the keys username and password, or token for OAUTHBEARER. The operator reads it
    for each connection."""


class KafkaExportSasl(SpecModel):
    """User that jobs of Exports authenticate as."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    """SASL mechanism, by Kafka's names."""
    credentials_secret_ref: SecretRef
    """Secret with the keys username and password."""


class KafkaExportCredentials(SpecModel):
    """Identity of jobs of Exports. Neither the operator's user nor its certificate is used."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.certificateSecretRef) || has(self.sasl)",
            message="exportCredentials needs certificateSecretRef or sasl",
        ),
    )

    certificate_secret_ref: SecretRef | None = None
    """Secret with the keys tls.crt and tls.key (type kubernetes.io/tls). Jobs present this client
    certificate."""
    sasl: KafkaExportSasl | None = None


class KafkaReassignment(SpecModel):
    """Limits for replica reassignments."""

    throttle: Quantity | None = None
    """Replication throttle in bytes per second, for sending and for receiving, per broker while
    replicas are added. Default: 50Mi."""


class KafkaEngine(SpecModel):
    """Existing Apache Kafka cluster in KRaft mode, version 4.0 or newer."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.exportCredentials) || "
            "!has(self.exportCredentials.certificateSecretRef) || has(self.tls)",
            message="exportCredentials.certificateSecretRef requires tls",
            field_path=".exportCredentials",
        ),
    )

    bootstrap_servers: Annotated[
        str, Field(min_length=3, max_length=2048, pattern=rf"^{_ADDRESS}(,{_ADDRESS})*$")
    ]
    """Kafka's bootstrap.servers as a comma-separated list of host:port."""
    tls: KafkaTls | None = None
    """TLS settings. Unset: the connection is not encrypted."""
    sasl: KafkaSasl | None = None
    """SASL settings. Unset: the operator does not authenticate with SASL."""
    export_credentials: KafkaExportCredentials | None = None
    """Credentials of the jobs of Exports. Unset: jobs authenticate as the operator does."""
    reassignment: KafkaReassignment | None = None


class EngineSpec(SpecModel):
    """Engine that stores the topics. Set either tidemark or kafka."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.tidemark) != has(self.kafka)",
            message="engine needs exactly one of tidemark and kafka",
        ),
    )

    tidemark: TidemarkEngine | None = None
    kafka: KafkaEngine | None = None


def _on_kafka(of: str) -> str:
    return f"(has({of}.engine) && has({of}.engine.kafka))"


def _not_on_kafka(field: str, why: str) -> Rule:
    return Rule(
        rule=f"!{_on_kafka('self')} || !has(self.{field})",
        message=f"spec.{field} is not supported with engine kafka: {why}. Remove it.",
        field_path=f".{field}",
    )


#: Rules of a Cluster's spec.
ENGINE_RULES = (
    Rule(
        # The other engine has none of the data, so a change would lose every topic.
        rule=f"{_on_kafka('self')} == {_on_kafka('oldSelf')}",
        message="engine is immutable. Create another Cluster in its own namespace, and "
        "its Topics there.",
    ),
    _not_on_kafka("brokers", "Broker objects of Apache Kafka are read-only mirrors"),
    _not_on_kafka("remoteStorage", "configure remote.log.storage.manager.* on its brokers"),
    _not_on_kafka("authorization", "its brokers have their own authorizer and ACLs"),
    _not_on_kafka("quotas", "set quotas in that cluster with kafka-configs.sh"),
    _not_on_kafka(
        "clientChanges", "clients change topics at its brokers, so restrict them by its ACLs"
    ),
    _not_on_kafka("groups", "set it in that cluster with kafka-configs.sh"),
    Rule(
        rule=(
            # Other keys would be ignored by Kafka's brokers, which must not look like success.
            f"!{_on_kafka('self')} || !has(self.config) || "
            f"self.config.all(k, k in {cel_list(sorted(OWN_KEYS))})"
        ),
        message=(
            f"with engine kafka, config takes only {' and '.join(OWN_KEYS)}. "
            "Set all other keys on the brokers of Apache Kafka."
        ),
        field_path=".config",
    ),
)
