"""Client quotas in manifests: those of a User, and a Cluster's for whoever has none of their own
(KIP-13, KIP-55, KIP-124, KIP-599).

Of one kind the most precise holds: of the user with the client id, of the user, of every user, then
of the client id, whoever uses it.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from tidemark_operator.resources.schema import Kube, Rule, SpecModel

#: The client id that stands for each one without a quota of its own.
EVERY_OTHER = "*"
#: Client ids of one list.
CLIENTS_MAX = 64

_Rate = Annotated[int, Field(ge=1), Kube(format="int64")]
_ANY_RATE = (
    "has(self.producerByteRate) || has(self.consumerByteRate) || has(self.requestPercentage) || "
    "has(self.controllerMutationRate)"
)


class Rates(SpecModel):
    """What may be used on each broker, by the kinds of Kafka's client quotas."""

    producer_byte_rate: Annotated[_Rate | None, Field(description="Bytes a second.")] = None
    consumer_byte_rate: Annotated[_Rate | None, Field(description="Bytes a second.")] = None
    request_percentage: Annotated[
        int | None,
        Field(ge=1, le=100_000, description="Percent of the time of a broker's one thread."),
        Kube(format="int32"),
    ] = None
    controller_mutation_rate: Annotated[
        _Rate | None, Field(description="Partitions created or deleted a second (KIP-599).")
    ] = None


class ClientIdQuotas(Rates):
    """Limits of clients by the id that they give themselves."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=_ANY_RATE,
            message=(
                "give a producerByteRate, a consumerByteRate, a requestPercentage or a "
                "controllerMutationRate"
            ),
        ),
    )

    client_id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=249,
            description="A client's client.id; *: each one that is not listed, by itself.",
        ),
    ]


ClientIds = Annotated[
    tuple[ClientIdQuotas, ...],
    Field(max_length=CLIENTS_MAX),
    Kube(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["clientId"]}),
]


class UserQuotas(Rates):
    """Limits of a user, all of its clients together but for those that are listed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"{_ANY_RATE} || (has(self.clients) && size(self.clients) > 0)",
            message=(
                "give a producerByteRate, a consumerByteRate, a requestPercentage, a "
                "controllerMutationRate or clients"
            ),
        ),
    )

    clients: Annotated[
        ClientIds | None, Field(description="Limits of its clients of these ids.")
    ] = None


class ClusterQuotas(SpecModel):
    """Limits of those who have none of their own."""

    every_user: Annotated[
        UserQuotas | None,
        Field(description="Of each user, by itself; who has not proven who they are is one user."),
    ] = None
    clients: Annotated[
        ClientIds | None, Field(description="Of clients by their ids, whichever user they are of.")
    ] = None
