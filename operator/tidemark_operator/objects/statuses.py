"""Status writes: never one that changes nothing, and figures that move on their own once a
minute."""

from collections.abc import Mapping
from typing import Any

from tidemark_operator.controller.status import Pacer
from tidemark_operator.kube.kinds import Json, Key, Kind
from tidemark_operator.objects.client import ObjectClient


class StatusWriter:
    """The one way in which a status of a watched object is written. Raises ``KubeError``."""

    def __init__(self, client: ObjectClient) -> None:
        self._client = client
        self._pacer = Pacer()
        self._said: dict[Key, object] = {}

    async def write(self, kind: Kind, key: Key, status: Mapping[str, object]) -> Json:
        """Write it now; the object as it then is."""
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
        """Write it if it says more than ``former``, or its figures are due; whether it did."""
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
        """The same of what another operator may look after, whose word is the last one: two that
        contradict each other would write without end. What is said is said again only when it is
        something else."""
        conditions: Any = status["conditions"]
        said = [uid, *({**each, "lastTransitionTime": None} for each in conditions)]
        if self._said.get(key) != said:
            await self.write_if_due(kind, key, former, status, now_ms=now_ms)
            self._said[key] = said

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self._said.pop(key, None)
        self._pacer.forget(str(key))
