"""Refused changes in Kafka's form: an error code, and a message that says what to do."""

from kio.schema.errors import ErrorCode

from tidemark.wire.topics import DISABLEMENT_IN_PROGRESS, TopicChangeResult
from tidemark_operator.controller.state.model import ClusterInfo, TopicInfo
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
)

_CONFLICT_ADVICE = "change it there, or remove the field from that manager"
_DISABLING = "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS"


#: Longest message, which contains a client's own names and values: responses of Kafka's older
#: versions cannot carry 32 KiB.
_MESSAGE_MAX = 2000


class ChangeRefusal(Exception):
    """A change that is not made; ``code`` is Kafka's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:_MESSAGE_MAX]

    def result(self) -> TopicChangeResult:
        """Return the result for the broker."""
        return TopicChangeResult(error_code=self.code, error_message=self.message, topic_id=None)


def refused(code: ErrorCode, message: str) -> ChangeRefusal:
    """Return a refusal with one of Kafka's error codes."""
    return ChangeRefusal(int(code), message)


def check_allowed(cluster: ClusterInfo, topic: TopicInfo | None, object_: str, remedy: str) -> None:
    """Check that Kafka clients may change a spec. Raises :class:`ChangeRefusal`.

    Kafka's controller calls a policy (KIP-108, KIP-133) after its own checks, so this one is called
    last, too. ``topic``: the topic that changes, None for a new one or the Cluster. ``object_`` and
    ``remedy`` are the beginning and the advice of the message.
    """
    of_topic = None if topic is None else topic.refuses_client_changes
    if not (cluster.refuses_client_changes if of_topic is None else of_topic):
        return
    place = f"Cluster {cluster.key}" if topic is None or of_topic is None else f"Topic {topic.key}"
    text = f"{object_} is managed by Kubernetes: {remedy}. spec.clientChanges of {place} is Refuse"
    raise refused(ErrorCode.policy_violation, text)


def of_api_server(error: KubeError) -> ChangeRefusal:
    """Convert an error of the Kubernetes API into the error that a Kafka client receives.

    A conflict of server-side apply names the field and its owner. The name of the API call is left
    out, since the client did not make it. If the API server did not answer, the effect is unknown:
    REQUEST_TIMED_OUT lets the client retry.
    """
    match error:
        case Conflict():
            return refused(
                ErrorCode.policy_violation, f"{error.server_message}: {_CONFLICT_ADVICE}"
            )
        # The order matters: a policy may use any status, so it is checked before the schema's
        # errors.
        case Invalid() | Forbidden() if error.by_policy:
            return refused(ErrorCode.policy_violation, error.server_message)
        case Invalid() if _DISABLING in error.message:
            return ChangeRefusal(DISABLEMENT_IN_PROGRESS, error.server_message)
        case Invalid() if "spec.config" in error.message:
            return refused(ErrorCode.invalid_config, error.server_message)
        case Invalid() | Forbidden():
            return refused(ErrorCode.policy_violation, error.server_message)
        case ApiServerUnavailable():
            return refused(ErrorCode.request_timed_out, error.message)
    return refused(ErrorCode.unknown_server_error, error.message)
