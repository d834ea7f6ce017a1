"""Statuses as stored in Kubernetes, computed from the state: conditions, figures, a sentence."""

from tidemark_operator.controller.status.broker import broker_status
from tidemark_operator.controller.status.cluster import cluster_status
from tidemark_operator.controller.status.conditions import ConditionValue, StatusResult, time_text
from tidemark_operator.controller.status.export import export_status
from tidemark_operator.controller.status.record_deletion import deletion_status
from tidemark_operator.controller.status.topic import topic_status
from tidemark_operator.controller.status.user import user_status
from tidemark_operator.controller.status.write_pacing import Pacer

__all__ = [
    "ConditionValue",
    "Pacer",
    "StatusResult",
    "broker_status",
    "cluster_status",
    "deletion_status",
    "export_status",
    "time_text",
    "topic_status",
    "user_status",
]
