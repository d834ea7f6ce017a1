"""Names in the API: group, annotations, labels, finalizers, limits.

They are in one place, because manifests in users' Git repositories repeat these strings: a renamed
one is a breaking change of the API.
"""

import enum

GROUP = "tidemark.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
#: Name of each kind in the paths of the API server.
PLURALS = {
    "Cluster": "clusters",
    "Broker": "brokers",
    "Topic": "topics",
    "RecordDeletion": "recorddeletions",
    "User": "users",
    "Export": "exports",
    "PartitionSlice": "partitionslices",
}

#: ``"true"`` stops reconciling an object; everything outside stays as it is.
PAUSED_ANNOTATION = f"{GROUP}/paused"
#: On a Cluster: a changed value starts a rotation of its certificate authority.
RENEWAL_ANNOTATION = f"{GROUP}/renew-certificates"
#: On a Cluster: ``"true"`` stops brokers from sweeping the tier, like
#: ``tidemark.remote.sweep.enable: "false"``, with any configuration.
SWEEP_PAUSED_ANNOTATION = f"{GROUP}/sweep-paused"

#: The same for the authority of the Cluster's clients.
CLIENTS_RENEWAL_ANNOTATION = f"{GROUP}/renew-clients-certificates"

#: On a Secret, by its owner: the kinds of objects that may name it, separated by commas
#: (:class:`~tidemark_operator.kube.secrets.OfferedTo`).
OFFERED_ANNOTATION = f"{GROUP}/offered-to"
#: On the Secret of a User: the uid of the User that it was created for or adopted by.
USER_UID_ANNOTATION = f"{GROUP}/user-uid"
#: On every object that the operator creates: Kubernetes' label of the managing tool.
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
OPERATOR = "tidemark-operator"

#: On a Topic: brokers of partitions that are not placed yet (see :mod:`assignments`).
ASSIGNMENT_ANNOTATION = f"{GROUP}/replica-assignment"
#: On a Topic with state of the brokers themselves: ``"true"``.
INTERNAL_LABEL = f"{GROUP}/internal"

#: Cluster of an object that the operator has written.
CLUSTER_LABEL = f"{GROUP}/cluster"

#: Broker of a pod.
BROKER_LABEL = f"{GROUP}/broker"
#: Role of a broker without replicas, on its objects and its pod. Other brokers have no such label.
ROLE_LABEL = f"{GROUP}/role"
#: On a Job and its pods: the Export, and the number of the run.
EXPORT_LABEL = f"{GROUP}/export"
RUN_LABEL = f"{GROUP}/run"
#: On a Service for external clients: the listener.
LISTENER_LABEL = f"{GROUP}/listener"
#: On a broker's pod and its external Services: changes with the desired state.
CONFIG_DIGEST_ANNOTATION = f"{GROUP}/config-digest"
#: On a Broker: its drain belongs to a scale-down of its Cluster.
SCALING_DOWN_ANNOTATION = f"{GROUP}/scaling-down"

CLUSTER_FINALIZER = f"{GROUP}/cluster"
LEASE_FINALIZER = f"{GROUP}/lease"
TOPIC_FINALIZER = f"{GROUP}/topic"
BROKER_FINALIZER = f"{GROUP}/broker"
SLICE_FINALIZER = f"{GROUP}/partition-slice"

CATEGORY = "tidemark"
INTERNAL_CATEGORY = "tidemark-internal"

#: Number of PartitionSlices of a Cluster; copied to its status at its creation, and fixed from then
#: on.
SLICES_DEFAULT = 64

PARTITIONS_MAX = 10_000
REPLICAS_MAX = 100


class Workload(enum.StrEnum):
    """Runner of a broker's process. External: a person or another tool, on any machine. Pod: the
    operator, in this namespace. Observed: Apache Kafka (``Cluster.spec.engine``); the operator
    creates and deletes the Broker object."""

    EXTERNAL = "External"
    POD = "Pod"
    OBSERVED = "Observed"


class BrokerRole(enum.StrEnum):
    """Work of a broker. Broker: it has replicas. Reader: it has none, and serves to consumers what
    only the tier has."""

    BROKER = "Broker"
    READER = "Reader"


def slice_name(cluster: str, index: int) -> str:
    """Return the object name of slice ``index`` (from 0) of a cluster, such as ``demo-07``."""
    return f"{cluster}-{index:02d}"
