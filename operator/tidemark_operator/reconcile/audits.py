"""Periodic read of audit results in the tier; affected Topics are reconciled.

An audit runs anywhere, with the keys of the store, and leaves a record there
(:mod:`tidemark.tier.audit_record`). The record changes once in weeks, and may be some MiB with
thousands of topics, so reading it once a minute is enough. A Topic is also reconciled when only
time has passed, because a clean audit counts for a limited time.
"""

import dataclasses
import time

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.status.remote_integrity import has_changed, remote_integrity
from tidemark_operator.kube.kinds import TOPIC
from tidemark_operator.reconcile import remote_storage
from tidemark_operator.reconcile.services import ReconcilerServices

AUDIT_CHECK_S = 60.0


class AuditReader:
    """Reader of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._due_s = 0.0

    async def look(self) -> None:
        """Read the audit record once a minute at most; without an answer the last result stays."""
        state = self._services.state
        if not state.cluster.remote_storage or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + AUDIT_CHECK_S
        # None: the store did not answer.
        found = await remote_storage.last_audits(state.cluster.remote_storage)
        if found is not None:
            state.cluster = dataclasses.replace(state.cluster, audits=found)
        self._wake()

    def _wake(self) -> None:
        state, now_ms = self._services.state, wall_ms()
        for text, topic in state.topics.items():
            if topic.paused or topic.deletion_ms is not None or not state.rows_of(topic.id):
                continue
            current = remote_integrity(state, topic, topic.tiering_status, now_ms=now_ms)
            if has_changed(topic.status, current):
                self._services.queue.add(TOPIC.key(text))
