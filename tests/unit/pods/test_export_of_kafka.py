"""Job of an Export of Kafka's topics: address and credentials of the Cluster, and refusals."""

from typing import Any

import pytest

from tests.unit.pods.test_export_job import RUN, body, job_of, surroundings
from tidemark.export_job import OptionPlace, Order
from tidemark_operator.controller.state.export_values import DesiredJob, Problem
from tidemark_operator.objects.exports import JobDefaults, desired_job
from tidemark_operator.pods.export_job import export_job
from tidemark_operator.resources.cluster import Cluster
from tidemark_operator.resources.export import OPTIONS
from tidemark_pipeline.read.topic_source import topic_options

TLS = {"caSecretRef": {"name": "ca"}, "certificateSecretRef": {"name": "own"}}
SASL = {"mechanism": "SCRAM-SHA-512", "credentialsSecretRef": {"name": "login"}}


def kafka(**engine: Any) -> Cluster:
    spec = {"bootstrapServers": "k1:9093,k2:9093", **engine}
    return Cluster.parse({"spec": {"engine": {"kafka": spec}}})


def found(made: dict[str, Any], cluster: Cluster) -> DesiredJob | Problem:
    return desired_job(made, surroundings(cluster=cluster), JobDefaults(image="pipeline:1"))


def test_source_is_the_kafka_of_the_cluster() -> None:
    options = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "7"}
    job = job_of(body(source={"tier": "auto", "options": options}), cluster=kafka())
    assert job.order.source == {
        "engine": "kafka",
        "topic": "Flights_2013",
        "bootstrap": "k1:9093,k2:9093",
        "kafka.security.protocol": "PLAINTEXT",
        **options,
    }
    assert (job.files, job.variables) == ((), ())
    # The job accepts what the operator orders.
    read = topic_options(job.order.source, streaming=True)
    assert read.access is not None
    assert read.access.bootstrap == ("k1:9093", "k2:9093")


@pytest.mark.parametrize(
    ("engine", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"tls": {}}, "SSL"),
        ({"sasl": SASL}, "SASL_PLAINTEXT"),
        ({"tls": TLS, "sasl": SASL}, "SASL_SSL"),
    ],
)
def test_job_authenticates_as_the_cluster_does(engine: dict[str, Any], protocol: str) -> None:
    job = job_of(body(), cluster=kafka(**engine))
    source = job.order.source
    assert source["kafka.security.protocol"] == protocol
    files = {file.option: f"{file.secret}/{file.key}" for file in job.files}
    hidden = {hidden.name: hidden.variable for hidden in job.order.hidden}
    secrets = {item.variable: f"{item.secret}/{item.key}" for item in job.variables}
    if engine.get("tls"):
        assert files == {
            "kafka.ssl.ca.location": "ca/ca.crt",
            "kafka.ssl.certificate.location": "own/tls.crt",
            "kafka.ssl.key.location": "own/tls.key",
        }
    if engine.get("sasl"):
        assert source["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
        assert {name: secrets[variable] for name, variable in hidden.items()} == {
            "kafka.sasl.username": "login/username",
            "kafka.sasl.password": "login/password",
        }
        revealed = job.order.revealed(dict.fromkeys(secrets, "word"))
        login = topic_options(revealed.source, streaming=True).access
        assert login is not None
        assert login.login is not None
        assert (login.login.name, login.login.password) == ("word", "word")
    # Secrets are files and variables of the pod, and never arguments of its process.
    (container,) = export_job(RUN, job)["spec"]["template"]["spec"]["containers"]
    assert not any("kafka" in argument for argument in container["args"])


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({"tier": "remote"}, "spec.source.tier"),
        ({"listener": "SECURE"}, "spec.source.listener"),
        ({"bootstrap": "elsewhere:9092"}, "spec.source.bootstrap"),
        ({"trustedSecretRef": {"name": "a", "key": "b"}}, "spec.source.trustedSecretRef"),
        (
            {"userRef": {"name": "a"}, "options": {"kafka.security.protocol": "SSL"}},
            "spec.source.userRef, spec.source.options.kafka.security.protocol",
        ),
        ({"options": {"maxBytesPerTrigger": "1"}}, "spec.source.options.maxBytesPerTrigger"),
    ],
)
def test_field_that_cannot_apply_is_refused_by_name(source: dict[str, Any], named: str) -> None:
    problem = found(body(source=source), kafka())
    assert isinstance(problem, Problem)
    assert problem.message.startswith(f"{named} cannot be set for a topic of Apache Kafka")
    assert "Remove " in problem.message
    assert not problem.waits


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_is_refused_by_the_operator_or_accepted_by_the_job(option: str) -> None:
    values = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"0": 1}',
        "startingOffsetsByTimestampStrategy": "latest",
        "failOnDataLoss": "true",
    }
    made = found(body(source={"options": {option: values.get(option, "1")}}), kafka())
    if isinstance(made, DesiredJob):
        topic_options(made.order.source, streaming=True)
    else:
        assert f"spec.source.options.{option} " in made.message


def test_token_of_the_cluster_is_refused() -> None:
    sasl = {"mechanism": "OAUTHBEARER", "credentialsSecretRef": {"name": "login"}}
    problem = found(body(), kafka(sasl=sasl))
    assert isinstance(problem, Problem)
    assert "OAUTHBEARER" in problem.message
    assert "in spec.engine.kafka.exportCredentials" in problem.message
    # Jobs need not have the operator's identity.
    login = {"mechanism": "PLAIN", "credentialsSecretRef": {"name": "job"}}
    job = job_of(body(), cluster=kafka(sasl=sasl, exportCredentials={"sasl": login}))
    assert job.order.source["kafka.sasl.mechanism"] == "PLAIN"
    assert {variable.secret for variable in job.variables} == {"job"}


def test_credentials_of_exports_replace_those_of_the_operator() -> None:
    own = {"certificateSecretRef": {"name": "job"}}
    job = job_of(body(), cluster=kafka(tls=TLS, sasl=SASL, exportCredentials=own))
    assert job.order.source["kafka.security.protocol"] == "SSL"
    assert {file.secret for file in job.files} == {"ca", "job"}
    assert job.variables == ()


def test_executors_read_no_certificate_file_of_kafka() -> None:
    executors = {"job": {"executors": {"instances": 1}}}
    assert isinstance(found(body(**executors), kafka(tls=TLS)), DesiredJob)
    # A registry's file is read by tasks.
    registry = {"url": "https://r", "trustedSecretRef": {"name": "r", "key": "ca"}}
    table = {"schema": {"format": "avro", "registry": registry}}
    problem = found(body(table=table, **executors), kafka(tls=TLS))
    assert isinstance(problem, Problem)
    assert "(ca)" in problem.message


def test_other_credentials_need_another_job_but_other_brokers_do_not() -> None:
    job = job_of(body(), cluster=kafka())
    assert job_of(body(), cluster=kafka(bootstrapServers="k9:9093")).digest == job.digest
    assert job_of(body(), cluster=kafka(sasl=SASL)).digest != job.digest


def test_order_survives_its_journey_to_the_job() -> None:
    job = job_of(body(), cluster=kafka(sasl=SASL))
    assert Order.of_json(job.order.to_json()) == job.order
    assert {hidden.place for hidden in job.order.hidden} == {OptionPlace.SOURCE}
