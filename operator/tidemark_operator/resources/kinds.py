"""All kinds of the API."""

from tidemark_operator.resources.broker import BROKER
from tidemark_operator.resources.cluster import CLUSTER
from tidemark_operator.resources.export import EXPORT
from tidemark_operator.resources.partition_slice import PARTITION_SLICE
from tidemark_operator.resources.record_deletion import RECORD_DELETION
from tidemark_operator.resources.topic import TOPIC
from tidemark_operator.resources.user import USER

KINDS = (CLUSTER, BROKER, TOPIC, RECORD_DELETION, USER, EXPORT, PARTITION_SLICE)
