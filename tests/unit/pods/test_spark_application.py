"""The SparkApplication of an Export's run, and the settings that spark-submit gives its driver."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pods.test_export_job import RUN, VALUE, body, job_of, template
from tidemark.export_job import OrderError
from tidemark_operator.pods.export_job import PIPELINE_SPARK, SPARK_CONTAINER, export_job
from tidemark_pipeline.jobs.executor import executors_of, properties_of


def application(**job: Any) -> dict[str, Any]:
    """Return the manifest of an Export with SparkApplications."""
    spark = {"executors": {"instances": 2}, "sparkApplication": {}}
    return body(table={"catalogSecrets": [{"name": "token", **VALUE}]}, job=spark | job)


def spec_of(made: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = export_job(RUN, job_of(made))["spec"]
    return spec


def test_application_replaces_the_job_with_the_same_names_and_owner() -> None:
    made, job = export_job(RUN, job_of(application())), export_job(RUN, job_of(body()))
    assert (made["apiVersion"], made["kind"]) == (
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
    )
    assert made["metadata"] == job["metadata"]
    # The operator alone decides about another run.
    assert made["spec"]["restartPolicy"] == {"type": "Never"}
    assert made["spec"]["sparkVersion"] == PIPELINE_SPARK == importlib.metadata.version("pyspark")


def test_driver_has_the_pod_of_the_job() -> None:
    made = application(serviceAccountName="lake-writer", tolerations=[{"key": "spark"}])
    driver = spec_of(made)["driver"]
    # A Job with the same executors.
    del made["spec"]["job"]["sparkApplication"]
    pod = template(made)
    (only,), (of_job,) = (found["spec"]["containers"] for found in (driver["template"], pod))
    assert driver["serviceAccount"] == "lake-writer"
    assert driver["template"]["metadata"] == pod["metadata"]
    assert {**driver["template"]["spec"], "containers": []} == {**pod["spec"], "containers": []}
    assert only["name"] == SPARK_CONTAINER
    # spark-submit describes the executors, not the order of a Job.
    added = [item for item in of_job["env"] if item not in only["env"]]
    assert {item["name"] for item in added} == {
        *("TIDEMARK_EXECUTORS", "TIDEMARK_POD_NAME", "TIDEMARK_POD_ADDRESS", "TIDEMARK_NAMESPACE")
    }
    same = [name for name in of_job if name not in ("name", "env")]
    assert {name: only[name] for name in same} == {name: of_job[name] for name in same}


def test_executors_keep_their_labels_and_their_restricted_pod() -> None:
    place = {"nodeSelector": {"pool": "spot"}}
    executors = {"instances": 4, "cores": 3, "memory": "3Gi", "podTemplate": place}
    found = spec_of(application(executors=executors))["executor"]
    assert (found["instances"], found["cores"], found["memory"]) == (4, 3, "3072m")
    # The Spark operator adds the labels of the SparkApplication to executors, too.
    assert found["labels"] == RUN.executor_labels
    pod = found["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "spot"}
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {}}]
    assert pod["automountServiceAccountToken"] is False
    (only,) = pod["containers"]
    assert only["name"] == "spark-kubernetes-executor"
    assert "env" not in only


def test_executors_between_two_numbers_are_allocated_dynamically() -> None:
    found = spec_of(application(executors={"min": 1, "max": 9}))
    allocation = found["dynamicAllocation"]
    assert (allocation["minExecutors"], allocation["maxExecutors"]) == (1, 9)
    assert "instances" not in found["executor"]


def test_batch_scheduler_receives_the_queue_and_the_priority() -> None:
    batch = {"batchScheduler": "volcano", "queue": "lake"}
    found = spec_of(application(sparkApplication=batch, priorityClassName="low"))
    assert found["batchScheduler"] == "volcano"
    assert found["batchSchedulerOptions"] == {"queue": "lake", "priorityClassName": "low"}
    assert "batchScheduler" not in spec_of(application())


def test_settings_size_the_pod_and_ports_are_those_of_network_policies() -> None:
    conf = {"spark.driver.memory": "2g", "spark.blockManager.port": "1"}
    found = spec_of(application(conf=conf))["sparkConf"]
    assert found["spark.driver.memory"] == "2g"
    assert (found["spark.driver.port"], found["spark.blockManager.port"]) == ("7078", "7079")


def test_another_kind_of_object_is_another_job() -> None:
    made = application()
    with_application = job_of(made).digest
    del made["spec"]["job"]["sparkApplication"]
    assert job_of(made).digest != with_application


# ------------------------------------------------------------ the driver

WRITTEN = r"""#Java properties built from Kubernetes config map with name: x
#Mon Nov 30 00:00:00 UTC 2026
spark.master=k8s\://https\://kubernetes.default.svc
spark.executor.cores=3
spark.submit.deployMode=cluster
spark.authenticate=false
spark.kubernetes.driver.label.app.kubernetes.io/name=tidemark-export
spark.hadoop.a\=b\ c=\ 1\=2\#\u00e9\tx\\
"""


def test_properties_are_read_as_java_writes_them() -> None:
    found = properties_of(WRITTEN)
    assert found["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert found["spark.hadoop.a=b c"] == " 1=2#é\tx\\"
    assert len(found) == 6


def test_driver_uses_the_settings_of_spark_submit_and_keeps_its_own(tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"
    file.write_text(WRITTEN)
    with executors_of({"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}, file) as executors:
        assert executors.master == "k8s://https://kubernetes.default.svc"
        assert executors.cores == 3
        settings = executors.settings
    assert settings["spark.driver.bindAddress"] == "10.0.0.7"
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.submit.deployMode"] == "client"


@pytest.mark.parametrize("text", ["", "spark.executor.cores=2\n"])
def test_file_without_the_settings_of_spark_submit_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "spark.properties"
    file.write_text(text)
    refused = pytest.raises(OrderError, match="no settings of spark-submit")
    with refused, executors_of({"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}, file):
        pass
