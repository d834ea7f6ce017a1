"""DescribeCluster (60): the brokers, and the broker to name as controller (KIP-700).

Versions 0 to 2:

- 1: type of endpoint (KIP-919)
- 2: fenced brokers (KIP-1073)

Behaviour:

- A request for controllers is rejected: a broker has no endpoints of them.
- A broker without the client's listener is left out.
"""

from dataclasses import dataclass

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.errors import ErrorCode

from tidemark.wire.users import ResourceType
from tidemark_broker.api.endpoints import endpoint_of
from tidemark_broker.api.schema import NOT_ASKED, ThrottledAnswer
from tidemark_broker.api.table import Api, Call

_BROKERS, _CONTROLLERS = 1, 2


@dataclass(slots=True, kw_only=True)
class DescribeClusterBroker:
    """One broker with the endpoint that clients connect to."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


@dataclass(slots=True, kw_only=True)
class DescribeClusterResponse(ThrottledAnswer):
    """Answer for brokers. ``controller_id`` is the broker to name as controller, -1 for none."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    endpoint_type: int = _BROKERS
    cluster_id: str = ""
    controller_id: int = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: int = NOT_ASKED


async def handle(request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    """Describe the brokers that the client can reach on its listener.

    A request for controller endpoints is rejected: they are not available from a broker (KIP-919).
    """
    # KIP-919: an admin client may have been given a broker's address instead of a controller's.
    if request.endpoint_type != _BROKERS:
        is_known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.mismatched_endpoint_type
            if is_known
            else ErrorCode.unsupported_endpoint_type,
            error_message="this is a broker: request endpoint type 1 (brokers)",
        )
    listener = call.client.listener
    # A broker without this listener cannot be reached by the client, so it is left out.
    brokers = []
    for node, row in sorted(call.services.cluster.brokers.items()):
        end = endpoint_of(row, listener)
        if end is not None and (request.include_fenced_brokers or not row.fenced):
            made = DescribeClusterBroker(
                broker_id=node, host=end.host, port=end.port, rack=row.rack, is_fenced=row.fenced
            )
            brokers.append(made)
    cluster = call.services.cluster
    return DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=tuple(brokers),
        cluster_authorized_operations=(
            call.client.operations(ResourceType.CLUSTER)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


API = Api(handle, versions=(0, 2))
