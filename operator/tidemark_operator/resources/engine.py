"""``Cluster.spec.engine``: what keeps the topics, our own brokers or an existing Apache Kafka.

Of Apache Kafka a Cluster says only how it is reached and who the operator is to it; what its
brokers are and do is theirs.
"""

import enum
from typing import Annotated, ClassVar

from pydantic import Field

from tidemark.configuration.broker_keys import DISABLE_POLICY, UNDER_REPLICATED_CREATION
from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.quantities import Quantity
from tidemark_operator.resources.references import SecretRef
from tidemark_operator.resources.schema import Rule, SpecModel

#: Keys of ``Cluster.spec.config`` that the operator itself obeys, whatever the engine.
OWN_KEYS = (DISABLE_POLICY, UNDER_REPLICATED_CREATION)
_ADDRESS = r"([^\s:,\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"


class TidemarkEngine(SpecModel):
    """Tidemark's own brokers."""


class SaslMechanism(enum.StrEnum):
    """Kafka's names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class KafkaTls(SpecModel):
    """The listener speaks TLS, and its certificate names the host that is dialled."""

    ca_secret_ref: Annotated[
        SecretRef | None,
        Field(
            description="Secret whose key ca.crt signs the brokers' certificates; unset: the "
            "system's authorities."
        ),
    ] = None
    certificate_secret_ref: Annotated[
        SecretRef | None,
        Field(
            description="Secret with the keys tls.crt and tls.key (type kubernetes.io/tls), which "
            "prove who the operator is."
        ),
    ] = None


class KafkaSasl(SpecModel):
    """The user that the operator is."""

    mechanism: SaslMechanism
    credentials_secret_ref: Annotated[
        SecretRef,
        Field(
            description="Secret with the keys username and password; for OAUTHBEARER with the key "
            "token. Read again for each connection."
        ),
    ]


class KafkaReassignment(SpecModel):
    """How replicas are moved."""

    throttle: Annotated[
        Quantity | None,
        Field(
            description="Bytes a second that a broker sends, and takes, for replicas which are "
            "being added; unset: 50Mi."
        ),
    ] = None


class KafkaEngine(SpecModel):
    """An Apache Kafka cluster, 4.0 or newer (KRaft), that is there already."""

    bootstrap_servers: Annotated[
        str,
        Field(
            min_length=3,
            max_length=2048,
            pattern=rf"^{_ADDRESS}(,{_ADDRESS})*$",
            description="Kafka's bootstrap.servers: host:port of some brokers, with commas.",
        ),
    ]
    tls: Annotated[KafkaTls | None, Field(description="Unset: the listener is in clear.")] = None
    sasl: Annotated[KafkaSasl | None, Field(description="Unset: brokers ask for no user.")] = None
    reassignment: KafkaReassignment | None = None


class Engine(SpecModel):
    """What keeps the topics: one of tidemark and kafka."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="has(self.tidemark) != has(self.kafka)", message="give either tidemark or kafka"),
    )

    tidemark: TidemarkEngine | None = None
    kafka: KafkaEngine | None = None


def _on_kafka(of: str) -> str:
    return f"(has({of}.engine) && has({of}.engine.kafka))"


def _not_on_kafka(field: str, why: str) -> Rule:
    return Rule(
        rule=f"!{_on_kafka('self')} || !has(self.{field})",
        message=f"{field} is of no use with engine kafka: {why}",
        field_path=f".{field}",
    )


#: Of a Cluster's spec.
ENGINE_RULES = (
    Rule(
        rule=f"{_on_kafka('self')} == {_on_kafka('oldSelf')}",
        message="which engine keeps the topics is immutable: make another Cluster in a namespace "
        "of its own, and Topics there",
    ),
    _not_on_kafka("brokers", "its brokers are run by somebody else, and shown as Broker objects"),
    _not_on_kafka("remoteStorage", "its brokers have their own (remote.log.storage.manager.*)"),
    _not_on_kafka("authorization", "its brokers have their own authorizer and ACLs"),
    _not_on_kafka("quotas", "set quotas in that cluster (kafka-configs.sh)"),
    _not_on_kafka("groups", "set them in that cluster (kafka-configs.sh)"),
    Rule(
        rule=(
            f"!{_on_kafka('self')} || !has(self.config) || "
            f"self.config.all(k, k in {cel_list(sorted(OWN_KEYS))})"
        ),
        message=(
            f"with engine kafka config has only the operator's own keys, {' and '.join(OWN_KEYS)}: "
            "all others are the brokers', set them there"
        ),
        field_path=".config",
    ),
)
