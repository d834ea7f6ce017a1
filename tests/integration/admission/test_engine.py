"""``Cluster.spec.engine``: the engine is immutable, and some fields are refused on Apache Kafka."""

from typing import Any

import pytest

from tests.integration.admission.api_server import (
    AdmissionApi,
    AdmissionRefused,
    Object,
    broker,
    broker_pod,
    edited,
    manifest,
)

KAFKA = {"kafka": {"bootstrapServers": "b1:9092,[::1]:9093"}}
JOB_CERTIFICATE = {"exportCredentials": {"certificateSecretRef": {"name": "job"}}}
# Each case has a field that only the Tidemark engine supports, or an invalid connection.
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"engine": {"kafka": {"bootstrapServers": "b:1", "exportCredentials": {}}}},
        "exportCredentials needs certificateSecretRef or sasl",
    ),
    (
        {"engine": {"kafka": {"bootstrapServers": "b:1", **JOB_CERTIFICATE}}},
        "exportCredentials.certificateSecretRef requires tls",
    ),
    ({"engine": {}}, "engine needs exactly one of tidemark and kafka"),
    ({"engine": {"tidemark": {}, **KAFKA}}, "engine needs exactly one of tidemark and kafka"),
    ({"engine": {"kafka": {"bootstrapServers": "b1"}}}, "bootstrapServers"),
    ({"engine": {"kafka": {}}}, "bootstrapServers"),
    (
        {"engine": {"kafka": {"bootstrapServers": "b:1", "sasl": {"mechanism": "GSSAPI"}}}},
        "GSSAPI",
    ),
    (
        {"brokers": {"replicas": 3, "template": broker_pod()}},
        "brokers is not supported with engine",
    ),
    ({"remoteStorage": {"filesystem": {"path": "/tier"}}}, "remoteStorage is not supported"),
    ({"authorization": {"type": "simple"}}, "authorization is not supported with engine kafka"),
    ({"groups": {"g": {"consumer.session.timeout.ms": "45000"}}}, "groups is not supported"),
    ({"clientChanges": "Refuse"}, "clientChanges is not supported with engine kafka"),
    ({"config": {"log.retention.ms": "1000"}}, "with engine kafka, config takes only"),
]


def on_kafka(**spec: Any) -> Object:
    return manifest("Cluster", spec={"engine": KAFKA, **spec})


@pytest.mark.parametrize(("spec", "message"), REFUSED)
def test_fields_unsupported_on_kafka_are_refused(
    api: AdmissionApi, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(AdmissionRefused, match=message):
        api.try_create(on_kafka(**spec))


def test_cluster_on_kafka_with_all_fields_is_accepted(api: AdmissionApi) -> None:
    kafka = {
        "bootstrapServers": "b1:9092",
        "tls": {"caSecretRef": {"name": "ca"}, "certificateSecretRef": {"name": "us"}},
        "sasl": {"mechanism": "SCRAM-SHA-512", "credentialsSecretRef": {"name": "user"}},
        "exportCredentials": {
            "certificateSecretRef": {"name": "job"},
            "sasl": {"mechanism": "PLAIN", "credentialsSecretRef": {"name": "job-user"}},
        },
        "reassignment": {"throttle": "10Mi"},
    }
    config = {
        "remote.log.disable.policy": "delete",
        "enable.under.replicated.topic.creation": "true",
    }
    made = api.create(on_kafka(engine={"kafka": kafka}, config=config))
    # The address of the same Kafka may change.
    api.replace(edited(made, "spec.engine.kafka.bootstrapServers", "b2:9092"))


@pytest.mark.parametrize("engine", [..., {"tidemark": {}}])
def test_engine_is_immutable(api: AdmissionApi, engine: object) -> None:
    made = api.create(on_kafka())
    with pytest.raises(AdmissionRefused, match="engine is immutable"):
        api.replace(edited(made, "spec.engine", engine))
    own = api.create(edited(on_kafka(), "spec.engine", engine))
    with pytest.raises(AdmissionRefused, match="engine is immutable"):
        api.replace(edited(own, "spec.engine", KAFKA))
    # An explicit default equals the implicit one.
    api.replace(edited(own, "spec.engine", {"tidemark": {}}))


def test_observed_broker_is_read_only(api: AdmissionApi) -> None:
    made = api.create(broker(workload="Observed", nodeId=7))
    with pytest.raises(AdmissionRefused, match=r"is read-only|Drain the broker"):
        api.replace(edited(made, "spec.drain", True))
    with pytest.raises(AdmissionRefused, match="workload is immutable"):
        api.replace(edited(made, "spec.workload", "External"))
