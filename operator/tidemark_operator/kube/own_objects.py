"""What the objects that the operator creates have in common: labels and annotations of the
Cluster's ``spec.objectMetadata``, and how the operator hears which of them are refused.

Every creation goes through :meth:`OwnObjects.write`, which
:class:`~tidemark_operator.kube.client.KubeApi` calls: a kind that is added later is covered without
another line.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidemark_operator.kube.errors import Forbidden, Invalid, KubeError
from tidemark_operator.kube.kinds import EVENT, JOB, STATEFUL_SET, TOPIC, Json, Kind

#: A refusal that was not repeated for so long is over: what the operator needs it tries again much
#: sooner, and a client may have asked for another topic instead.
REMEMBERED_S = 600.0
TOLD_AGAIN_S = 60.0
#: Clients choose names of topics, so the number of refusals is theirs.
REFUSALS_MAX = 100
_WITH_TEMPLATE = frozenset({STATEFUL_SET.kind, JOB.kind})


@dataclasses.dataclass(frozen=True, slots=True)
class CreationRefusal:
    """An object that the API server does not let the operator create, and why, in its words."""

    kind: str
    name: str
    said: str
    told_s: float
    at_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.said}"


class OwnObjects:
    """Of one client of the API server. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._labels: Mapping[str, str] = {}
        self._annotations: Mapping[str, str] = {}
        self._refused: dict[tuple[str, str], CreationRefusal] = {}
        #: Called when an object is refused for another reason than before.
        self.on_refusal: Callable[[CreationRefusal], None] = lambda _: None

    def follow(self, cluster: Json) -> None:
        """Take over what a Cluster's spec says. Refusals of before it count no more."""
        found = cluster["spec"].get("objectMetadata") or {}
        labels, annotations = found.get("labels") or {}, found.get("annotations") or {}
        if (labels, annotations) != (self._labels, self._annotations):
            self._labels, self._annotations = dict(labels), dict(annotations)
            self._refused.clear()

    def marked(self, body: Json) -> Json:
        """Return an object with the labels and annotations, and its pods' template as well; what
        the operator itself has set goes before."""
        marked = {**body, "metadata": self._metadata(body["metadata"])}
        if body.get("kind") in _WITH_TEMPLATE:
            template = body["spec"]["template"]
            template = {**template, "metadata": self._metadata(template.get("metadata") or {})}
            marked["spec"] = {**body["spec"], "template": template}
        return marked

    def _metadata(self, own: Mapping[str, Any]) -> Json:
        labels = {**self._labels, **(own.get("labels") or {})}
        annotations = {**self._annotations, **(own.get("annotations") or {})}
        return {
            **own,
            **({"labels": labels} if self._labels else {}),
            **({"annotations": annotations} if self._annotations else {}),
        }

    async def write(
        self,
        kind: Kind,
        body: Json,
        send: Callable[[Json], Awaitable[Json]],
        *,
        dry_run: bool = False,
    ) -> Json:
        """Send one of the operator's own objects, marked, and remember whether it was refused."""
        name = _shown_name(kind, body)
        try:
            written = await send(self.marked(body))
        except KubeError as error:
            if not dry_run and _is_refusal(error):
                self._refuse(kind.kind, name, error.said)
            raise
        if not dry_run:
            self._refused.pop((kind.kind, name), None)
        return written

    def _refuse(self, kind: str, name: str, said: str) -> None:
        former, now_s = self._refused.pop((kind, name), None), self._clock()
        # Words that change with every try (a Service's address) are no news.
        is_news = former is None or (said != former.said and now_s - former.told_s > TOLD_AGAIN_S)
        told = CreationRefusal(kind, name, said, now_s, now_s)
        if former is not None and not is_news:
            told = dataclasses.replace(former, at_s=now_s)
        self._refused[kind, name] = told
        if len(self._refused) > REFUSALS_MAX:
            del self._refused[next(iter(self._refused))]
        if is_news:
            self.on_refusal(told)

    def refused(self) -> list[CreationRefusal]:
        """Return what is refused now, the longest known first."""
        since_s = self._clock() - REMEMBERED_S
        self._refused = {key: each for key, each in self._refused.items() if each.at_s > since_s}
        return list(self._refused.values())


def _shown_name(kind: Kind, body: Json) -> str:
    """Return how an object is named to people: a Topic as Kafka does; Events, which have names of
    their own, all alike, since what is refused of one is refused of all."""
    if kind is EVENT:
        return "*"
    name = body["spec"].get("topicName") if kind is TOPIC else None
    return str(name or body["metadata"]["name"])


def _is_refusal(error: KubeError) -> bool:
    """Whether a person has to allow the object: a policy, a quota or a role refuses it. What the
    schema refuses (``Invalid`` otherwise) is the fault of whoever described it."""
    return isinstance(error, Forbidden) or (isinstance(error, Invalid) and error.by_policy)
