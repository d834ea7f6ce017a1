"""DescribeCluster (60): the brokers and the one to name as controller (KIP-700, 919, 1073)."""

from typing import Any

from kio.schema.errors import ErrorCode

from tidemark_broker.api.endpoints import endpoint_of
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call

_BROKERS = 1


async def handle(request: Any, call: Call) -> Any:
    """Answer; the controllers' own endpoints are not to be had from a broker."""
    wanted = getattr(request, "endpoint_type", _BROKERS)
    if wanted != _BROKERS:
        return _answer(call, wanted, ErrorCode.mismatched_endpoint_type, ())
    with_fenced = getattr(request, "include_fenced_brokers", False)
    listener = call.services.settings.listener
    make = call.shapes.of("DescribeClusterBroker")
    brokers = []
    for node, row in sorted(call.services.cluster.brokers.items()):
        end = endpoint_of(row, listener)
        if end is not None and (with_fenced or not row.fenced):
            made = make(
                broker_id=node, host=end.host, port=end.port, rack=row.rack, is_fenced=row.fenced
            )
            brokers.append(made)
    return _answer(call, wanted, ErrorCode.none, tuple(brokers))


def _answer(call: Call, endpoint_type: int, error: ErrorCode, brokers: tuple[Any, ...]) -> Any:
    cluster = call.services.cluster
    return call.shapes.answer(
        throttle_time=ZERO,
        error_code=error,
        error_message=None if error is ErrorCode.none else "this is a broker: ask for brokers (1)",
        endpoint_type=endpoint_type,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id if error is ErrorCode.none else -1,
        brokers=brokers,
    )


API = Api(key=60, name="DescribeCluster", version_min=0, version_max=2, handler=handle)
