"""Shared services of a broker's handlers, for tests that call a handler without a broker."""

from typing import Any

from tidemark_broker.api.fetch_session import FetchSessionCache
from tidemark_broker.api.services import HandlerServices, HandlerSettings
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.security.user_store import UserStore
from tidemark_broker.topic_changes.creations import Creations

#: A missing service: any use of it fails.
NOTHING: Any = None


def services(cluster: MetadataCache, **parts: Any) -> HandlerServices:
    """``parts``: fields of Services; everybody may do everything, unless ``users`` say more."""
    bare: dict[str, Any] = {
        "replicas": NOTHING,
        "purgatory": Purgatory(),
        "settings": HandlerSettings(),
        "users": UserStore(),
        "fetch_sessions": FetchSessionCache(slots=10),
        "changes": NOTHING,
        "producer_ids": NOTHING,
        "creations": Creations(NOTHING, cluster, {}),
        "entries": {},
        "groups": NOTHING,
        "transactions": NOTHING,
        "marker_writer": NOTHING,
        "confirmations": NOTHING,
    }
    return HandlerServices(cluster=cluster, **bare | parts)
