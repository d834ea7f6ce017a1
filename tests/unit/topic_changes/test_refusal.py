"""Errors of Kafka clients whose request the API server refuses."""

import json

import pytest
from kio.schema.errors import ErrorCode

from tidemark_operator.kube.errors import error_of
from tidemark_operator.topic_changes.refusal import of_api_server

CALL = "PATCH /apis/tidemark.dev/v1alpha1/namespaces/default/topics/orders"
CONFLICT = (
    'Apply failed with 1 conflict: conflict with "argocd" using tidemark.dev/v1alpha1: '
    ".spec.partitions"
)


@pytest.mark.parametrize(
    ("status", "text", "code", "expected"),
    [
        (
            409,
            CONFLICT,
            ErrorCode.policy_violation,
            f"{CONFLICT}: change it there, or remove the field from that manager",
        ),
        (422, "spec.tiering: no", ErrorCode.policy_violation, "spec.tiering: no"),
        (422, "spec.config: no", ErrorCode.invalid_config, "spec.config: no"),
        (403, "may not", ErrorCode.policy_violation, "may not"),
    ],
)
def test_client_gets_the_servers_message_without_the_request_line(
    status: int, text: str, code: ErrorCode, expected: str
) -> None:
    body = json.dumps({"message": text}).encode()
    refusal = of_api_server(error_of(status, body, None, CALL))
    assert (refusal.code, refusal.message) == (int(code), expected)
