"""Requests that the control listener serves."""

from dataclasses import dataclass

from tidemark.wire import control, framing, topics

_REQUESTS: dict[int, type] = {
    control.BROKER_REGISTRATION: control.BrokerRegistrationRequest,
    control.REPLICA_STATES: control.ReplicaStatesRequest,
    control.BROKER_HEARTBEAT: control.BrokerHeartbeatRequest,
    control.ALTER_PARTITION: control.AlterPartitionRequest,
    control.BROKER_STATUS: control.BrokerStatusRequest,
    control.ALLOCATE_PRODUCER_IDS: control.AllocateProducerIdsRequest,
    control.ATTACH: control.AttachRequest,
    topics.CHANGE_TOPICS: topics.ChangeTopicsRequest,
}

#: Requests within a session, which carry its secret.
SessionRequest = (
    control.BrokerHeartbeatRequest
    | control.AlterPartitionRequest
    | control.BrokerStatusRequest
    | control.AllocateProducerIdsRequest
    | control.AttachRequest
    | topics.ChangeTopicsRequest
)
#: Requests before a session.
Introduction = control.BrokerRegistrationRequest | control.ReplicaStatesRequest
Request = Introduction | SessionRequest
Response = (
    control.BrokerRegistrationResponse
    | control.ReplicaStatesResponse
    | control.BrokerHeartbeatResponse
    | control.AlterPartitionResponse
    | control.BrokerStatusResponse
    | control.AllocateProducerIdsResponse
    | control.AttachResponse
    | topics.ChangeTopicsResponse
)


@dataclass(frozen=True, slots=True)
class Received:
    """A request and the correlation id of its answer."""

    correlation_id: int
    request: Request


def decode_request(frame: bytes) -> Received:
    """Return a broker's request; raises :class:`framing.FrameError` for an unknown one."""
    key, version, correlation_id = framing.peek_request(frame)
    request_type = _REQUESTS.get(key)
    if request_type is None or version != 0:
        raise framing.FrameError(f"request key {key} version {version} is not supported")
    request: Request = framing.decode_request(request_type, frame)
    return Received(correlation_id, request)
