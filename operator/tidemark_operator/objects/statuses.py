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
        """Write a status if it is due; return whether it was written.

        A changed condition is written at once. Changed figures are written at most once in an
        interval.
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
        """Write a status at most once per content.

        For an object that another operator may also manage: if that overwrites the status, this one
        does not repeat it. Otherwise two operators that contradict each other would write forever.
        """
        conditions: Any = status["conditions"]
        content = [uid, *({**condition, "lastTransitionTime": None} for condition in conditions)]
        # Transition times differ in each rendering, so they are not compared.
        if self._written.get(key) != content:
            await self.write_if_due(kind, key, former, status, now_ms=now_ms)
            self._written[key] = content

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deleted object."""
        self._written.pop(key, None)
        self._pacer.forget(str(key))
