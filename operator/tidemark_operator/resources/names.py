"""Names that stand in the API: group, annotations, labels, finalizers, limits.

One place for them, because a manifest in somebody's Git repository repeats each of these strings:
renaming one is a breaking change of the API.
"""

GROUP = "tidemark.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

#: ``"true"`` stops reconciling an object; what exists outside stays as it is.
PAUSED_ANNOTATION = f"{GROUP}/paused"
#: ``"true"`` makes a delete be refused (an admission policy that the chart ships).
DELETION_PROTECTION_ANNOTATION = f"{GROUP}/deletion-protection"
#: The topic id that a new Topic object takes over from a topic that already exists.
ADOPT_TOPIC_ID_ANNOTATION = f"{GROUP}/adopt-topic-id"

#: The Cluster that an object written by the operator belongs to.
CLUSTER_LABEL = f"{GROUP}/cluster"

TOPIC_FINALIZER = f"{GROUP}/topic"
BROKER_FINALIZER = f"{GROUP}/broker"
CLUSTER_FINALIZER = f"{GROUP}/cluster"
SLICE_FINALIZER = f"{GROUP}/partition-slice"

CATEGORY = "tidemark"
INTERNAL_CATEGORY = "tidemark-internal"

#: Number of PartitionSlices of a Cluster; copied to its status when it is made and fixed from then on.
SLICES_DEFAULT = 64

PARTITIONS_MAX = 10_000
REPLICAS_MAX = 100
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def slice_name(cluster: str, index: int) -> str:
    """The object name of slice ``index`` (from 0) of a cluster: ``demo-07``."""
    return f"{cluster}-{index:02d}"
