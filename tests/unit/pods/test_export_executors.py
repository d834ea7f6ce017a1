"""Executor pods of an Export's job: what the job's pod is given to create them."""

import json
from typing import Any

import pytest

from tests.unit.pods.test_export_job import RUN, body, container, surroundings, template
from tidemark.export_job import EXECUTORS_VARIABLE, ExecutorOrder
from tidemark_operator.controller.state.export_values import DesiredJob, Problem
from tidemark_operator.objects.exports import JobDefaults, desired_job
from tidemark_operator.pods.export_job import export_job


def with_executors(**executors: Any) -> dict[str, Any]:
    return body(job={"cores": 3, "executors": executors})


def order_of(made: dict[str, Any], account: str = "") -> ExecutorOrder:
    """Return the order of executors in the job's pod. ``account``: default of the operator."""
    defaults = JobDefaults(image="pipeline:1", service_account=account)
    found = desired_job(made, surroundings(), defaults)
    assert isinstance(found, DesiredJob)
    (only,) = export_job(RUN, found)["spec"]["template"]["spec"]["containers"]
    (text,) = (item["value"] for item in only["env"] if item["name"] == EXECUTORS_VARIABLE)
    return ExecutorOrder.of_json(text)


def test_job_without_executors_has_no_token_and_no_port_for_them() -> None:
    assert template(body())["spec"]["automountServiceAccountToken"] is False
    assert [port["name"] for port in container(body())["ports"]] == ["metrics"]
    assert EXECUTORS_VARIABLE not in json.dumps(template(body()))


def test_job_with_executors_has_a_token_and_knows_its_own_pod() -> None:
    made = with_executors(instances=4, memory="3Gi", cores=2)
    assert template(made)["spec"]["automountServiceAccountToken"] is True
    assert [port["name"] for port in container(made)["ports"]] == ["metrics", "driver", "blocks"]
    fields = {
        item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in container(made)["env"]
        if "fieldRef" in item.get("valueFrom", {})
    }
    assert fields == {"metadata.name", "status.podIP", "metadata.namespace"}
    order = order_of(made)
    assert (order.minimum, order.maximum, order.cores, order.memory_mib) == (4, 4, 2, 3072)


def test_executors_between_two_numbers_are_allocated_dynamically() -> None:
    order = order_of(with_executors(max=9))
    assert (order.minimum, order.maximum) == (0, 9)


def test_executor_pod_is_restricted_and_mounts_nothing_of_the_job() -> None:
    place = {"nodeSelector": {"pool": "spot"}, "tolerations": [{"key": "spot"}]}
    pod = order_of(with_executors(instances=1, podTemplate=place)).pod
    spec = pod["spec"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "tidemark-executor"
    assert spec["automountServiceAccountToken"] is False
    assert spec["volumes"] == [{"name": "tmp", "emptyDir": {}}]
    (only,) = spec["containers"]
    assert only["securityContext"]["readOnlyRootFilesystem"] is True
    assert "env" not in only
    assert spec["nodeSelector"] == {"pool": "spot"}
    assert [item["key"] for item in spec["tolerations"]] == ["spot"]


def test_executors_that_would_need_a_file_of_a_secret_are_a_problem() -> None:
    made = with_executors(instances=1)
    made["spec"]["source"] = {"trustedSecretRef": {"name": "trust", "key": "ca.crt"}}
    problem = desired_job(made, surroundings(), JobDefaults(image="pipeline:1"))
    assert isinstance(problem, Problem)
    assert "kafka.ssl.ca.location" in problem.message
    assert not problem.waits


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ports": 1}'])
def test_malformed_order_of_executors_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no order of executors"):
        ExecutorOrder.of_json(text)
