"""Executors in pods: Spark's settings for them, and the program of their container.

The driver of an Export's job creates executor pods with Spark's scheduler for Kubernetes. Their
container runs ``python3 -m tidemark_pipeline.jobs.executor``, which becomes the JVM of an executor.
Spark describes the executor in environment variables, as for the entry point of its own images.

With the Spark operator, spark-submit in cluster mode creates the driver's pod. It passes all
settings to the driver in a file.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.export_job import (
    EXECUTORS_VARIABLE,
    NAMESPACE_VARIABLE,
    POD_ADDRESS_VARIABLE,
    POD_NAME_VARIABLE,
    ExecutorOrder,
    OrderError,
)
from tidemark.scratch import ScratchFolder
from tidemark_pipeline.java import find_java

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_JAVA_OPTION = "SPARK_JAVA_OPT_"
#: Address that a driver of spark-submit listens on.
_BIND_ADDRESS = "SPARK_DRIVER_BIND_ADDRESS"
#: A line of a file of java.util.Properties, and an escape in it.
_PROPERTY = re.compile(r"((?:[^\\=]|\\.)+)=(.*)")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
#: Arguments of an executor's JVM, by the variable that contains their value.
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """Master and settings of a session; without executors the session is local."""

    master: str | None = None
    cores: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


#: Settings of a driver in a pod.
_IN_POD = {
    # The account may manage pods only.
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    # Any pod could connect to its ports: executors prove that this driver created them.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.kubernetes.memoryOverheadFactor": "0.4",
}


@contextmanager
def executors_of(
    environment: Mapping[str, str], submitted: Path | None = None
) -> Iterator[ExecutorSettings]:
    """Yield the session settings for the executors that the environment of a pod describes.

    ``submitted``: the file of spark-submit, which describes them instead. The template of their
    pods is in a temporary file meanwhile. Raises OrderError.
    """
    # spark-submit has already written the template, too.
    if submitted is not None:
        yield _submitted(submitted, environment)
        return
    text = environment.get(EXECUTORS_VARIABLE)
    if not text:
        yield ExecutorSettings()
        return
    # Spark reads the template of an executor from a file.
    order = ExecutorOrder.of_json(text)
    with ScratchFolder("executors") as folder:
        template = folder / "pod.json"
        template.write_text(json.dumps(order.pod), encoding="utf-8")
        yield ExecutorSettings(
            _api_server(environment),
            order.cores,
            executor_settings(order, environment, template),
        )


def properties_of(text: str) -> dict[str, str]:
    """Return the settings in a file that java.util.Properties wrote, one in each line."""
    lines = (_PROPERTY.fullmatch(line) for line in text.split("\n") if not line.startswith("#"))
    return {_unescaped(line[1]): _unescaped(line[2]) for line in lines if line is not None}


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda found: (
            chr(int(found[1][1:], 16)) if len(found[1]) > 1 else _ESCAPED.get(found[1], found[1])
        ),
        text,
    )


def _submitted(file: Path, environment: Mapping[str, str]) -> ExecutorSettings:
    """Return the settings of a driver that spark-submit has created. Raises OrderError."""
    try:
        given = properties_of(file.read_text("utf-8"))
        # The file still has the mode of spark-submit; this process is the driver.
        settings = {**given, **_IN_POD, "spark.submit.deployMode": "client"}
        settings["spark.driver.bindAddress"] = environment[_BIND_ADDRESS]
        return ExecutorSettings(given["spark.master"], int(given["spark.executor.cores"]), settings)
    except (OSError, ValueError, KeyError) as error:
        raise OrderError(f"{file} has no settings of spark-submit: {error!r}") from error


def executor_settings(
    order: ExecutorOrder, environment: Mapping[str, str], template: Path
) -> dict[str, str]:
    """Return Spark's settings for executor pods. ``template``: file with the pod of one."""
    driver, blocks = order.ports
    settings = {
        "spark.kubernetes.namespace": environment[NAMESPACE_VARIABLE],
        # Executors belong to this pod, and Kubernetes deletes them with it.
        "spark.kubernetes.driver.pod.name": environment[POD_NAME_VARIABLE],
        "spark.kubernetes.container.image": order.image,
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.executor.podTemplateContainerName": order.container,
        **_IN_POD,
        "spark.driver.host": environment[POD_ADDRESS_VARIABLE],
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": str(driver),
        "spark.blockManager.port": str(blocks),
        "spark.executor.memory": f"{order.memory_mib}m",
    }
    if order.minimum == order.maximum:
        return settings | {"spark.executor.instances": str(order.maximum)}
    return settings | {
        "spark.dynamicAllocation.enabled": "true",
        # There is no shuffle service: an executor whose shuffle data is needed stays.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(order.minimum),
        "spark.dynamicAllocation.maxExecutors": str(order.maximum),
    }


def command(java: Path, jars: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the command of an executor's JVM. Raises KeyError if Spark set no variable for it."""
    names = [name for name in environment if name.startswith(_JAVA_OPTION)]
    options = [environment[name] for name in sorted(names, key=_number)]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    arguments = [item for name, key in _ARGUMENTS.items() for item in (name, environment[key])]
    classes = f"{jars}/*"
    return [
        str(java),
        *options,
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        classes,
        _BACKEND,
        *arguments,
    ]


def main() -> None:
    """Become the JVM of an executor."""
    import pyspark

    spark = Path(pyspark.__file__).parent
    # Python workers of the executor import the modules of this image.
    os.environ["SPARK_HOME"] = str(spark)
    java = command(find_java(), spark / "jars", os.environ)
    os.execv(java[0], java)


def _number(name: str) -> int:
    return int(name.removeprefix(_JAVA_OPTION))


def _api_server(environment: Mapping[str, str]) -> str:
    host = environment["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    return f"k8s://https://{host}:{environment['KUBERNETES_SERVICE_PORT']}"


if __name__ == "__main__":
    main()
