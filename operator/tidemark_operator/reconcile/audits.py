"""What audits have found in the tier, read now and then, and the Topics that it concerns woken.

An audit may run anywhere, by whoever has keys of the store, and leaves a record there
(:mod:`tidemark.tier.audit_record`). It changes once in weeks, and may be some MiB with thousands of
topics: once a minute is soon enough. A Topic is also woken when nothing was written but time has
passed, since an audit that found nothing counts only so long.
"""

import dataclasses
import time

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.status.remote_integrity import has_changed, remote_integrity
from tidemark_operator.kube.kinds import TOPIC
from tidemark_operator.reconcile import remote_storage
from tidemark_operator.reconcile.services import Services

AUDIT_CHECK_S = 60.0


class AuditReader:
    """Of one term."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._due_s = 0.0

    async def look(self) -> None:
        """Once a minute at most; what the store does not say now stays as it was known."""
        state = self._services.state
        if not state.cluster.remote_storage or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + AUDIT_CHECK_S
        found = await remote_storage.last_audits(state.cluster.remote_storage)
        if found is not None:
            state.cluster = dataclasses.replace(state.cluster, audits=found)
        self._wake()

    def _wake(self) -> None:
        state, now_ms = self._services.state, wall_ms()
        for text, topic in state.topics.items():
            if topic.paused or topic.deletion_ms is not None or not state.rows_of(topic.id):
                continue
            told = remote_integrity(state, topic, topic.tiering_status, now_ms=now_ms)
            if has_changed(topic.status, told):
                self._services.queue.add(TOPIC.key(text))
