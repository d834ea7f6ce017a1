"""Why a change is not made, as Kafka tells it: an error code and a sentence that says what to
do."""

from kio.schema.errors import ErrorCode

from tidemark.wire.topics import DISABLEMENT_IN_PROGRESS, TopicChangeResult
from tidemark_operator.kube.errors import Conflict, Forbidden, Invalid, KubeError, Unavailable

_CONFLICT_ADVICE = "change it there, or remove the field from that manager"
_DISABLING = "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS"


#: Characters of a message, in which a client's own names and values stand: answers of Kafka's older
#: versions cannot carry 32 KiB.
_MESSAGE_MAX = 2000


class Refusal(Exception):
    """``code``: Kafka's number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:_MESSAGE_MAX]

    def result(self) -> TopicChangeResult:
        """As the broker is told."""
        return TopicChangeResult(error_code=self.code, error_message=self.message, topic_id=None)


def refused(code: ErrorCode, message: str) -> Refusal:
    """With one of Kafka's codes."""
    return Refusal(int(code), message)


def of_api_server(error: KubeError) -> Refusal:
    """What the API server's refusal means to a Kafka client. A conflict of server-side apply names
    the field and who holds it; which call was answered is left out, since no client made it. Where
    no answer came nobody knows whether it took effect, and REQUEST_TIMED_OUT lets the client ask
    again."""
    match error:
        case Conflict():
            return refused(ErrorCode.policy_violation, f"{error.said}: {_CONFLICT_ADVICE}")
        case Invalid() | Forbidden() if error.by_policy:
            return refused(ErrorCode.policy_violation, error.said)
        case Invalid() if _DISABLING in error.message:
            return Refusal(DISABLEMENT_IN_PROGRESS, error.said)
        case Invalid() if "spec.config" in error.message:
            return refused(ErrorCode.invalid_config, error.said)
        case Invalid() | Forbidden():
            return refused(ErrorCode.policy_violation, error.said)
        case Unavailable():
            return refused(ErrorCode.request_timed_out, error.message)
    return refused(ErrorCode.unknown_server_error, error.message)
