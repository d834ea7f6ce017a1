"""Errors of a coordinator, with the codes that Kafka's clients receive."""

from collections.abc import Mapping
from types import MappingProxyType

from kio.schema.errors import ErrorCode

#: Errors of an append, converted for the coordinator's client (Kafka's
#: CoordinatorOperationExceptionHelper): retry, or look for the coordinator.
_OF_APPENDS: Mapping[ErrorCode, ErrorCode] = MappingProxyType(
    {
        ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
        ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
        ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
        ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
        ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
        ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
        ErrorCode.message_too_large: ErrorCode.unknown_server_error,
        ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    }
)


class CoordinatorError(Exception):
    """A failed request. ``error_code`` is sent to the client."""

    def __init__(self, error_code: ErrorCode, message: str = "") -> None:
        super().__init__(message or error_code.name)
        self.error_code = error_code


class CoordinatorRecordTooLarge(CoordinatorError):
    """A batch exceeds the topic's limit. Nothing was appended."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            ErrorCode.unknown_server_error,
            f"a batch of {size_bytes} bytes exceeds max.message.bytes={limit_bytes} of the "
            "coordinator's topic",
        )


def append_failed(error: ErrorCode, message: str | None) -> CoordinatorError:
    """Return the error for an append that failed."""
    # Other codes of an append are meaningful to clients as they are.
    return CoordinatorError(_OF_APPENDS.get(error, error), message or "")
