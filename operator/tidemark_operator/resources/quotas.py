"""Client quotas in manifests: those of a User, and a Cluster's defaults (KIP-13, KIP-55, KIP-124,
KIP-599).

The most specific quota of a kind applies: of the user with the client id, of the user, of every
user, and then of the client id with any user.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from tidemark_operator.resources.schema import KubernetesSchema, Rule, SpecModel, keyed_by

#: Client id that stands for each one without a quota of its own.
EVERY_OTHER = "*"
#: Number of client ids in one list.
CLIENTS_MAX = 64

_Rate = Annotated[int, Field(ge=1), KubernetesSchema(format="int64")]
_ANY_RATE = (
    "has(self.producerByteRate) || has(self.consumerByteRate) || has(self.requestPercentage) || "
    "has(self.controllerMutationRate)"
)


class Rates(SpecModel):
    """Quotas per broker, by Kafka's quota types."""

    producer_byte_rate: _Rate | None = None
    """Bytes per second, per broker."""
    consumer_byte_rate: _Rate | None = None
    """Bytes per second, per broker."""
    request_percentage: Annotated[
        int | None, Field(ge=1, le=100_000), KubernetesSchema(format="int32")
    ] = None
    """Percent of the time of a broker's request thread. 100 is the whole thread."""
    controller_mutation_rate: _Rate | None = None
    """Partition creations and deletions per second (KIP-599)."""


class ClientIdQuotas(Rates):
    """Quotas of clients with a client id."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=_ANY_RATE,
            message=(
                "at least one of producerByteRate, consumerByteRate, "
                "requestPercentage and controllerMutationRate is required"
            ),
        ),
    )

    client_id: Annotated[str, Field(min_length=1, max_length=249)]
    """Client id. * applies to each client id that is not listed, individually."""


ClientIds = Annotated[
    tuple[ClientIdQuotas, ...],
    Field(max_length=CLIENTS_MAX),
    KubernetesSchema(**keyed_by("clientId")),
]


class UserQuotas(Rates):
    """Quotas of a user. All its clients share them, except the listed client ids."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"{_ANY_RATE} || (has(self.clients) && size(self.clients) > 0)",
            message=(
                "at least one of producerByteRate, consumerByteRate, "
                "requestPercentage, controllerMutationRate and clients is "
                "required"
            ),
        ),
    )

    clients: ClientIds | None = None
    """Quotas for individual client ids of the user."""


class ClusterQuotas(SpecModel):
    """Default quotas for users and client ids without quotas of their own."""

    every_user: UserQuotas | None = None
    """Quotas for each user, individually. All unauthenticated clients together are one user."""
    clients: ClientIds | None = None
    """Quotas by client id, for any user."""
