"""No secret leaves the cluster with a support bundle, and what a reader needs stays."""

import base64
import json

import pytest

from tidemark_cli.inspection.redaction import REDACTED, Redactor, is_secret

#: Value of a Secret of the namespace, which nothing but its value reveals.
KNOWN = "correct-horse-battery"
PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIGx0\nc2VjcmV0\n-----END EC PRIVATE KEY-----"
#: By description: a text with a secret, and the secret.
PLANTED = {
    "value of a Secret": (f"login failed for {KNOWN}", KNOWN),
    "value of a Secret in Base64": (base64.b64encode(KNOWN.encode()).decode(), "Y29ycmVjdC1o"),
    "value of a Secret in a URL": ("GET /?q=p%40ss%2Fword HTTP/1.1", "p%40ss%2Fword"),
    "value of a Secret in JSON": (json.dumps({"line": 'a"quoted"one'}), 'a\\"quoted\\"one'),
    "line of a Secret": ("unexpected second-line in the file", "second-line"),
    "private key": (f"key:\n{PEM}\nend", "MHcCAQEEIGx0"),
    "private key in one line": (PEM.replace("\n", "\\n"), "MHcCAQEEIGx0"),
    "private key that is cut": (PEM[:50], "MHcCAQEEIGx0"[:6]),
    "property": ("ssl.key.password=hunter2\nlog.dirs=/data", "hunter2"),
    "YAML": ("password: hunter2", "hunter2"),
    "JSON": ('{"secretAccessKey": "hunter2", "region": "us-east-1"}', "hunter2"),
    "JSON in a JSON string": ('"{\\"password\\":\\"hunter2\\"}"', "hunter2"),
    "JAAS": ('PlainLoginModule required username="ann" password="hun ter2";', "hun ter2"),
    "option": ("--api-key=hunter2 --verbose", "hunter2"),
    "user of a URL": ("http://ann:hunter2@minio:9000/bucket", "hunter2"),
    "signed URL": ("GET /b/k?X-Amz-Signature=0123abcd&X-Amz-Expires=60", "0123abcd"),
    "access key id": ("signed with AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "bearer token": ("Authorization: Bearer abc.def", "abc.def"),
    "JSON Web Token": ("sent eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2ln", "eyJzdWIiOiJhbm4ifQ"),
    "environment": ("AWS_SECRET_ACCESS_KEY=hunter2 started", "hunter2"),
    "token of GitHub": ("cloned with ghp_0123456789abcdefghijABCDEFGHIJ", "ghp_0123456789"),
}
REDACTOR = Redactor([KNOWN, "p@ss/word", 'a"quoted"one', "first-line\nsecond-line"])


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_secret_is_removed_from_text(planted: str) -> None:
    text, secret = PLANTED[planted]
    assert secret in text
    redacted = REDACTOR.text(text)
    assert secret not in redacted
    assert REDACTED in redacted


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_secret_is_removed_from_an_annotation(planted: str) -> None:
    text, secret = PLANTED[planted]
    body = {"metadata": {"annotations": {"last-applied": text}}}
    assert secret not in REDACTOR.value(body)["metadata"]["annotations"]["last-applied"]


def test_secret_fields_of_objects_are_removed_by_their_names() -> None:
    body = {
        "spec": {
            "config": {"sasl.password": "hunter2"},
            "env": [{"name": "API_TOKEN", "value": "x"}],
        }
    }
    redacted = REDACTOR.value(body)
    assert redacted["spec"]["config"]["sasl.password"] == REDACTED
    assert redacted["spec"]["env"] == [{"name": "API_TOKEN", "value": REDACTED}]


def test_what_explains_a_problem_stays() -> None:
    for text in (
        "access key refused by the store http://minio:9000 (Secret tier): correct the keys",
        "credentialsSecretRef: {name: tier}",
        "topic orders: 3 partitions, leader epoch 5, min.insync.replicas=2",
        "tidemark_broker_tokens_count 7",
    ):
        assert REDACTOR.text(text) == text
    body = {"spec": {"credentialsSecretRef": {"name": "tier"}, "nodeId": 3}}
    assert REDACTOR.value(body) == body


@pytest.mark.parametrize("name", ["secretName", "credentialsSecretRef", "token_count", "secrets"])
def test_references_and_figures_are_no_secrets(name: str) -> None:
    assert not is_secret(name)


def test_a_password_field_with_a_reference_stays() -> None:
    reference = {"valueFrom": {"secretKeyRef": {"name": "billing", "key": "password"}}}
    assert Redactor().value({"password": reference, "pin_token": 123456}) == {
        "password": reference,
        "pin_token": REDACTED,
    }


def test_a_reason_that_names_a_password_is_no_assignment() -> None:
    line = "User default/billing: PasswordUnusable: Secret billing does not exist"
    assert Redactor().text(line) == line
