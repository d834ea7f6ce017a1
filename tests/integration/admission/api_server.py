"""A small client of the API server for these tests: apply an object, return the result."""

import copy
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tidemark_operator.resources.kinds import KINDS
from tidemark_operator.resources.names import API_VERSION, GROUP, VERSION

Object = dict[str, Any]
NAMESPACE = "default"
PLURALS = {kind.kind: kind.plural for kind in KINDS}
_UNPROCESSABLE = 422
_APPLY = "application/apply-patch+yaml"
_names = itertools.count()


class AdmissionRefused(Exception):
    """The API server refused an object; the message is its reason."""


class AdmissionApi:
    """Creates, replaces and reads objects of tidemark.dev in the namespace ``default``."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
        self._objects = client.CustomObjectsApi(self._client)

    def close(self) -> None:
        self._client.close()

    def install(self, definition: Object, *, timeout_s: float = 30.0) -> None:
        """Apply a CRD and wait until it is served; raises AdmissionRefused."""
        name = definition["metadata"]["name"]
        self._call(
            lambda: self._objects.patch_cluster_custom_object(
                "apiextensions.k8s.io",
                "v1",
                "customresourcedefinitions",
                name,
                definition,
                field_manager="tidemark-test",
                force=True,
                _content_type=_APPLY,
            )
        )
        # A definition is accepted before its kind is served.
        deadline = time.monotonic() + timeout_s
        while not self._is_served(definition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is not served after {timeout_s} s")
            time.sleep(0.05)

    def _is_served(self, definition: Object) -> bool:
        try:
            self._objects.list_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, definition["spec"]["names"]["plural"]
            )
        except ApiException:
            return False
        return True

    def create(self, body: Object) -> Object:
        """Create an object; raises AdmissionRefused."""
        plural = PLURALS[body["kind"]]
        return self._call(
            lambda: self._objects.create_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, plural, body
            )
        )

    def try_create(self, body: Object) -> None:
        """Verify admission without storing the object; raises AdmissionRefused."""
        plural = PLURALS[body["kind"]]
        self._call(
            lambda: self._objects.create_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, plural, body, dry_run="All"
            )
        )

    def replace(self, body: Object) -> Object:
        """Replace an object (not its status) at its resourceVersion; raises AdmissionRefused."""
        plural, name = PLURALS[body["kind"]], body["metadata"]["name"]
        return self._call(
            lambda: self._objects.replace_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, plural, name, body
            )
        )

    def replace_status(self, body: Object, status: Object) -> Object:
        """Replace an object's status; raises AdmissionRefused."""
        plural, name = PLURALS[body["kind"]], body["metadata"]["name"]
        return self._call(
            lambda: self._objects.replace_namespaced_custom_object_status(
                GROUP, VERSION, NAMESPACE, plural, name, {**body, "status": status}
            )
        )

    def printed(self, body: Object) -> Object:
        """Return kubectl's columns of an object."""
        plural, name = PLURALS[body["kind"]], body["metadata"]["name"]
        host = self._client.configuration.host
        answer = self._client.rest_client.request(
            "GET",
            f"{host}/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{plural}/{name}",
            # kubectl's columns are rendered by the server if a client accepts a Table.
            headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"} | self._headers(),
        )
        table = json.loads(answer.read())
        columns = [item["name"] for item in table["columnDefinitions"]]
        return dict(zip(columns, table["rows"][0]["cells"], strict=True))

    def _headers(self) -> dict[str, str]:
        """Return the credentials of a user without a certificate."""
        found = self._client.configuration.auth_settings().get("BearerToken")
        return {} if found is None else {found["key"]: found["value"]}

    def apply(self, body: Object, *, manager: str) -> Object:
        """Server-side apply under a field manager of its own; raises AdmissionRefused."""
        plural, name = PLURALS[body["kind"]], body["metadata"]["name"]
        self._call(
            lambda: self._objects.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                NAMESPACE,
                plural,
                name,
                body,
                field_manager=manager,
                force=False,
                _content_type=_APPLY,
            )
        )
        return self.get(body)  # the client drops the body of an answer 201

    def get(self, body: Object) -> Object:
        """Read an object again."""
        plural, name = PLURALS[body["kind"]], body["metadata"]["name"]
        return self._call(
            lambda: self._objects.get_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, plural, name
            )
        )

    def scale(self, body: Object, replicas: int) -> Object:
        """Set the number of replicas by the scale subresource; return it as read again."""
        name = body["metadata"]["name"]
        at = (GROUP, VERSION, NAMESPACE, PLURALS[body["kind"]], name)
        self._call(
            lambda: self._objects.patch_namespaced_custom_object_scale(
                *at, {"spec": {"replicas": replicas}}
            )
        )
        return self._call(lambda: self._objects.get_namespaced_custom_object_scale(*at))

    def delete(self, body: Object) -> None:
        self._objects.delete_namespaced_custom_object(
            GROUP, VERSION, NAMESPACE, PLURALS[body["kind"]], body["metadata"]["name"]
        )

    @staticmethod
    def _call(call: Callable[[], object]) -> Object:
        try:
            return cast(Object, call())
        except ApiException as error:
            # 422 is a refusal by validation; every other error is a failure of the test.
            if error.status == _UNPROCESSABLE:
                raise AdmissionRefused(json.loads(error.body or "{}")["message"]) from error
            raise


def edited(body: Object, path: str, value: object) -> Object:
    """A deep copy of the object with one field set (``spec.tiering.enabled``), or removed where
    the value is ``...``; dots inside a key are written ``/``: ``spec.config.retention/ms``."""
    result = copy.deepcopy(body)
    # Dots inside a key are written as slashes.
    *parents, last = (step.replace("/", ".") for step in path.split("."))
    place = result
    for step in parents:
        place = place.setdefault(step, {})
    if value is ...:
        place.pop(last, None)
    else:
        place[last] = value
    return result


def manifest(kind: str, **fields: Any) -> Object:
    """A fresh object with a name of its own."""
    # A name of its own for each object, because the tests share a namespace.
    name = f"{kind.lower()}-{next(_names)}"
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, **fields}


def topic(**spec: Any) -> Object:
    base = {"clusterRef": {"name": "demo"}, "partitions": 3, "replicationFactor": 3}
    return manifest("Topic", spec={**base, **spec})


def tiered_topic(**spec: Any) -> Object:
    """A valid tiered Topic."""
    return topic(**{"tiering": {"enabled": True}, **spec})


def broker(**spec: Any) -> Object:
    base = {"clusterRef": {"name": "demo"}, "nodeId": 1, "workload": "External"}
    return manifest("Broker", spec={**base, **spec})


def broker_pod(**fields: Any) -> Object:
    """``spec.pod`` of a Broker."""
    return {
        "image": "tidemark/broker:1",
        "storage": {"size": "20Gi"},
        "listeners": [{"name": "PLAINTEXT", "port": 9092, "protocol": "PLAINTEXT"}],
        **fields,
    }


def external_listener(name: str = "EXTERNAL", **fields: Any) -> Object:
    """One of ``spec.pod.listeners``, on ports of nodes if nothing else is said."""
    external = {"type": "NodePort"} | fields
    return {"name": name, "port": 9095, "protocol": "PLAINTEXT", "external": external}


def broker_in_a_pod(**fields: Any) -> Object:
    """A valid Broker that the operator keeps a pod for."""
    return broker(workload="Pod", pod=broker_pod(**fields))


def cluster(**spec: Any) -> Object:
    """A valid Cluster with a folder as its tier."""
    base = {"remoteStorage": {"filesystem": {"path": "/var/lib/tier"}}}
    return manifest("Cluster", spec={**base, **spec})


def s3_storage(**changes: Any) -> Object:
    """A valid ``remoteStorage`` of S3."""
    s3 = {
        "endpoint": "http://127.0.0.1:9000",
        "region": "us-east-1",
        "buckets": ["one-bucket", "two-bucket"],
        "credentialsSecretRef": {"name": "keys"},
    }
    return {"s3": {**s3, **changes}}


def gcs_storage(**changes: Any) -> Object:
    """A valid ``remoteStorage`` of Google Cloud Storage."""
    return {"gcs": {"buckets": ["one-bucket", "two_bucket"], **changes}}


def azure_storage(**changes: Any) -> Object:
    """A valid ``remoteStorage`` of Azure Blob Storage."""
    return {"azure": {"account": "account1", "containers": ["one", "two"], **changes}}


def user(**spec: Any) -> Object:
    """A valid User with a password that the operator makes."""
    return manifest("User", spec={"clusterRef": {"name": "demo"}, **spec})


def acl(type_: str = "Topic", *operations: str, **fields: Any) -> Object:
    """Return a valid ACL on every resource of a type, for Describe by default."""
    named = {} if type_ == "Cluster" else {"name": "*"}
    resource = {"type": type_, **named, **fields.pop("resource", {})}
    return {"resource": resource, "operations": list(operations or ("Describe",)), **fields}


def record_deletion(**spec: Any) -> Object:
    """A valid RecordDeletion once ``all`` or ``partitions`` is given."""
    return manifest("RecordDeletion", spec={"topicRef": {"name": "flights"}, **spec})


def export(**spec: Any) -> Object:
    """Return a valid continuous Export."""
    when = {} if "schedule" in spec else {"continuous": {}}
    table = {"name": "db.flights", "warehouse": "/lake", **spec.pop("table", {})}
    return manifest(
        "Export", spec={"topicRef": {"name": "flights"}, "table": table, **when, **spec}
    )


def partition_slice(**fields: Any) -> Object:
    base = {"controllerEpoch": 5, "commit": 10, "partitions": ["row"], "tombstones": []}
    return manifest("PartitionSlice", **{**base, **fields})


def documents(path: Path) -> list[Object]:
    """All documents of a YAML file."""
    return [body for body in yaml.safe_load_all(path.read_text(encoding="utf-8")) if body]
