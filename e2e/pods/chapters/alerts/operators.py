"""Faults of operators: missing rights, and peers that do not answer.

Rights are removed from the Role that the chart created, and put back.
"""

import base64
import datetime as dt
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cryptography import x509

from e2e.pods import objects
from e2e.pods.chapters.alerts.fault import Fault
from e2e.pods.objects import NAMESPACE
from e2e.pods.stage import OPERATOR, Stage
from tidemark.tls.identity import parse
from tidemark_operator.certificates.authority import KeyPair, issue

TOPIC = "alerts-operator"
EXPORT = "alerts-export"
SLOW = "e2e-slow"
#: An address for documentation (RFC 5737): a caller gets no answer.
NOBODY = "https://192.0.2.1/"
WEBHOOK_TIMEOUT_S = 10
HELD, AUTHORITY = "broker-1", "tidemark-ca"
#: Elapsed days of 90: less than two weeks are left.
OLD = dt.timedelta(days=80)


@contextmanager
def without(stage: Stage, *resources: str) -> Iterator[None]:
    """The operators' account has no right to any of them."""
    run = stage.kubernetes.run
    # Helm owns the Role, so the test restores exactly what it found.
    before = stage.kubernetes.get(NAMESPACE, "role", OPERATOR)["rules"]
    rules = [
        {**rule, "resources": [item for item in rule["resources"] if item not in resources]}
        for rule in before
    ]
    change = ("--namespace", NAMESPACE, "patch", "role", OPERATOR, "--type=merge", "--patch")
    run(*change, json.dumps({"rules": [rule for rule in rules if rule["resources"]]}))
    try:
        yield
    finally:
        run(*change, json.dumps({"rules": before}))


@contextmanager
def _statuses(stage: Stage) -> Iterator[None]:
    """Writing a Topic's status takes as long as a webhook that does not answer, and then fails."""
    stage.kubernetes.apply(_webhook())
    try:
        stage.kubernetes.apply(objects.topic(TOPIC, partitions=1, replicationFactor=3))
        yield
    finally:
        stage.kubernetes.run("delete", "validatingwebhookconfiguration", SLOW)
    stage.ready(f"topics.tidemark.dev/{TOPIC}")
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "topics.tidemark.dev", TOPIC)


def _webhook() -> dict[str, Any]:
    # Status updates of Topics call a webhook at an address that does not answer. With failurePolicy
    # Fail they fail after the timeout.
    rule = {
        "apiGroups": ["tidemark.dev"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["topics/status"],
    }
    webhook = {
        "name": f"{SLOW}.tidemark.dev",
        "clientConfig": {"url": NOBODY},
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": WEBHOOK_TIMEOUT_S,
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": SLOW},
        "webhooks": [webhook],
    }


@contextmanager
def _export(stage: Stage) -> Iterator[None]:
    """An Export whose schedule is one by its form only: there is no such minute."""
    stage.make_topic(EXPORT)
    del stage.written[EXPORT]
    stage.kubernetes.apply(objects.export(EXPORT, EXPORT, schedule="61 * * * *"))
    try:
        yield
    finally:
        stage.delete(f"exports.tidemark.dev/{EXPORT}")
        stage.delete(f"topics.tidemark.dev/{EXPORT}")


@contextmanager
def _lease(stage: Stage) -> Iterator[None]:
    """Block the Lease: without a leader no certificate is renewed."""
    # Without the Lease no operator leads, and the certificate below is not renewed.
    with without(stage, "leases"):
        _put_leaf(stage)
        yield
    stage.all_ready()
    _look_again(stage)


def _put_leaf(stage: Stage) -> None:
    """As the operator would have issued it long ago."""
    # The cluster's own authority signs a leaf that was issued 80 days ago, so it expires in ten.
    authority, held = _secret(stage, AUTHORITY), _secret(stage, f"{HELD}-tls")
    names = x509.load_pem_x509_certificate(held["tls.crt"]).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    (uri,) = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    who = parse(uri)
    assert who is not None
    pair = KeyPair(authority["tls.crt"], authority["tls.key"])
    leaf = issue(pair, who, dt.datetime.now(dt.UTC) - OLD)
    data = {"tls.crt": leaf.certificate, "tls.key": leaf.key}
    encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
    stage.kubernetes.run(
        *("--namespace", NAMESPACE, "patch", "secret", f"{HELD}-tls", "--type=merge"),
        *("--patch", json.dumps({"data": encoded})),
    )
    _look_again(stage)


def _secret(stage: Stage, name: str) -> dict[str, bytes]:
    data = stage.kubernetes.get(NAMESPACE, "secret", name)["data"]
    return {key: base64.b64decode(text) for key, text in data.items()}


def _look_again(stage: Stage) -> None:
    """A kubelet looks at the Secrets of a pod that has changed at once, and else every minute."""
    stage.kubernetes.run(
        *("--namespace", NAMESPACE, "annotate", "--overwrite", "pod", f"{HELD}-0"),
        f"e2e.tidemark.dev/looked={time.time_ns()}",
    )


@contextmanager
def _slices(stage: Stage) -> Iterator[None]:
    """An operator that may not write the slices cannot take over: with the first decision that is
    refused its term ends."""
    with without(stage, "partitionslices"):
        stage.kubernetes.apply(objects.topic(TOPIC, partitions=1, replicationFactor=3))
        yield
    stage.ready(f"topics.tidemark.dev/{TOPIC}")
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "topics.tidemark.dev", TOPIC)
    stage.all_ready()


FAULTS = (
    Fault(
        what="a webhook that does not answer",
        alerts=("TidemarkReconcilingStalled", "TidemarkReconcilingFails"),
        caused=_statuses,
    ),
    Fault(
        what="an Export without a time",
        alerts=("TidemarkExportFails",),
        caused=_export,
    ),
    Fault(
        what="no right to the Lease, and a certificate that is not renewed",
        alerts=(
            "TidemarkNoOperatorLeads",
            "TidemarkBrokerWithoutController",
            "TidemarkCertificateExpires",
        ),
        caused=_lease,
    ),
    Fault(
        what="no right to the slices",
        alerts=("TidemarkTakeoverFails",),
        caused=_slices,
    ),
)
