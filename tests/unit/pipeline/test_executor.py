"""Executors in pods: Spark's settings on the driver, and the command of an executor."""

import json
from pathlib import Path

import pytest

from tidemark.export_job import (
    EXECUTORS_VARIABLE,
    NAMESPACE_VARIABLE,
    POD_ADDRESS_VARIABLE,
    POD_NAME_VARIABLE,
    ExecutorOrder,
    OrderError,
)
from tidemark_pipeline.jobs.executor import command, executors_of

ORDER = ExecutorOrder(
    image="pipeline:1",
    minimum=2,
    maximum=2,
    cores=4,
    memory_mib=2048,
    ports=(7078, 7079),
    container="executor",
    pod={"kind": "Pod"},
)
POD = {
    POD_NAME_VARIABLE: "x-1-abcde",
    POD_ADDRESS_VARIABLE: "10.0.0.7",
    NAMESPACE_VARIABLE: "kafka",
    "KUBERNETES_SERVICE_HOST": "fd00::1",
    "KUBERNETES_SERVICE_PORT": "443",
}


def test_job_without_executors_is_local() -> None:
    with executors_of({}) as executors:
        assert executors.master is None
        assert executors.settings == {}


def test_driver_creates_authenticated_executors_that_belong_to_its_pod() -> None:
    with executors_of({**POD, EXECUTORS_VARIABLE: ORDER.to_json()}) as executors:
        settings = executors.settings
        assert (executors.master, executors.cores) == ("k8s://https://[fd00::1]:443", 4)
        template = Path(settings["spark.kubernetes.executor.podTemplateFile"])
        assert json.loads(template.read_text()) == {"kind": "Pod"}
    # The template is deleted with the session.
    assert not template.exists()
    assert settings["spark.kubernetes.driver.pod.name"] == "x-1-abcde"
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.executor.instances"] == "2"
    assert "spark.dynamicAllocation.enabled" not in settings


def test_executors_between_two_numbers_are_allocated_dynamically() -> None:
    text = ORDER.to_json().replace('"minimum":2', '"minimum":0')
    with executors_of({**POD, EXECUTORS_VARIABLE: text}) as executors:
        assert executors.settings["spark.dynamicAllocation.minExecutors"] == "0"
        assert executors.settings["spark.dynamicAllocation.maxExecutors"] == "2"
        assert "spark.executor.instances" not in executors.settings


def test_malformed_order_of_executors_is_refused() -> None:
    with pytest.raises(OrderError), executors_of({**POD, EXECUTORS_VARIABLE: "[]"}):
        pass


def test_executor_has_sparks_options_in_their_order() -> None:
    environment = {f"SPARK_JAVA_OPT_{number}": f"-Da={number}" for number in (10, 2, 0)} | {
        "SPARK_DRIVER_URL": "spark://x",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_EXECUTOR_POD_NAME": "x-exec-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_MEMORY": "2048m",
    }
    words = command(Path("/java"), Path("/jars"), environment)
    assert words[:6] == ["/java", "-Da=0", "-Da=2", "-Da=10", "-Xms2048m", "-Xmx2048m"]
    assert words[words.index("--podName") + 1] == "x-exec-1"
