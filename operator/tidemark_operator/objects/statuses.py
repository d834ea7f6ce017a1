"""Status writes: none without a change, and at most once a minute for figures alone."""

from collections.abc import Mapping
from typing import Any

from tidemark_operator.controller.status import Pacer
from tidemark_operator.kube.kinds import Json, Key, Kind
from tidemark_operator.objects.client import ObjectClient


class StatusWriter:
    """Single writer of the statuses of watched objects. Raises ``KubeError``."""

    def __init__(self, client: ObjectClient) -> None:
        self._client = client
        self._pacer = Pacer()
        self._written: dict[Key, object] = {}

    async def write(self, kind: Kind, key: Key, status: Mapping[str, object]) -> Json:
        """Write the status now and return the object."""
        return await self._client.replace_status(kind, key, status)

    async def write_if_due(
        self,
        kind: Kind,
        key: Key,
        former: Mapping[str, object],
        status: Mapping[str, object],
        *,
        now_ms: int,
    ) -> bool:
        """Write a status that differs from ``former``, or has figures that are due; return
        whether it did.
        """
        if not self._pacer.should_write(str(key), former, status, now_ms=now_ms):
            return False
        await self.write(kind, key, status)
        return True

    async def write_once(
        self,
        kind: Kind,
        key: Key,
        former: Mapping[str, object],
        status: Mapping[str, object],
        *,
        uid: str,
        now_ms: int,
    ) -> None:
        """Write a status once per content, for an object that another operator may also manage.

        The other operator has the last word: two that contradict each other would write without
        end.
        """
        conditions: Any = status["conditions"]
        content = [uid, *({**condition, "lastTransitionTime": None} for condition in conditions)]
        # Times differ in every render, so they are not part of the content.
        if self._written.get(key) != content:
            await self.write_if_due(kind, key, former, status, now_ms=now_ms)
            self._written[key] = content

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deleted object."""
        self._written.pop(key, None)
        self._pacer.forget(str(key))
