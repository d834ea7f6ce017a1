"""Labels and annotations of all objects that the operator creates.

They come from the Cluster's ``spec.objectMetadata``. The module also records the objects that the
API server refuses. :class:`~tidemark_operator.kube.client.KubeApi` sends every creation through
:meth:`OwnObjects.write`, so a kind that is added later needs no code here.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidemark_operator.kube.errors import Forbidden, Invalid, KubeError
from tidemark_operator.kube.kinds import EVENT, JOB, STATEFUL_SET, TOPIC, Json, Kind

#: A refusal that was not repeated for this time is over. The operator retries its own objects much
#: sooner, and a client may have requested another topic instead.
REMEMBERED_S = 600.0
#: Shortest time between two reports of one object with changing reasons.
REPORT_INTERVAL_S = 60.0
#: Clients choose the names of topics, so the number of refusals is not ours to limit.
REFUSALS_MAX = 100
_WITH_TEMPLATE = frozenset({STATEFUL_SET.kind, JOB.kind})


@dataclasses.dataclass(frozen=True, slots=True)
class CreationRefusal:
    """An object that the API server refuses to create. ``message``: its reason. ``reported_s``,
    ``at_s``: monotonic seconds of the last report and of the last refusal."""

    kind: str
    name: str
    message: str
    reported_s: float
    at_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.message}"


class OwnObjects:
    """Metadata and refusals of one API client's objects. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._labels: Mapping[str, str] = {}
        self._annotations: Mapping[str, str] = {}
        self._refused: dict[tuple[str, str], CreationRefusal] = {}
        #: Called when an object is refused for another reason than before.
        self.on_refusal: Callable[[CreationRefusal], None] = lambda _: None

    def follow(self, cluster: Json) -> None:
        """Use the metadata of a Cluster's spec from now on. A change forgets earlier refusals."""
        found = cluster["spec"].get("objectMetadata") or {}
        labels, annotations = found.get("labels") or {}, found.get("annotations") or {}
        if (labels, annotations) != (self._labels, self._annotations):
            self._labels, self._annotations = dict(labels), dict(annotations)
            # A refusal of the former metadata says nothing about the new one.
            self._refused.clear()

    def marked(self, body: Json) -> Json:
        """Return an object, and its pod template, with the labels and annotations. Those that the
        operator itself sets take precedence."""
        marked = {**body, "metadata": self._metadata(body["metadata"])}
        # Policies check the pods too, so templates carry the same metadata.
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
        """Send one of the operator's own objects, with their common labels and annotations.

        ``send`` performs the API call. A refusal is recorded for the Cluster's status, and raised.
        """
        name = _shown_name(kind, body)
        try:
            written = await send(self.marked(body))
        except KubeError as error:
            if not dry_run and _is_refusal(error):
                self._refuse(kind.kind, name, error.server_message)
            raise
        # The object was accepted, so an earlier refusal of it is over.
        if not dry_run:
            self._refused.pop((kind.kind, name), None)
        return written

    def _refuse(self, kind: str, name: str, message: str) -> None:
        """Record an object that the API server refuses to create.

        Report it unless done recently.
        """
        former, now_s = self._refused.pop((kind, name), None), self._clock()
        # A reason that changes with every retry (a Service's address) is not reported each time.
        is_news = former is None or (
            message != former.message and now_s - former.reported_s > REPORT_INTERVAL_S
        )
        refusal = CreationRefusal(kind, name, message, now_s, now_s)
        if former is not None and not is_news:
            refusal = dataclasses.replace(former, at_s=now_s)
        self._refused[kind, name] = refusal
        # The oldest refusal is dropped first: entries move to the end with each refusal.
        if len(self._refused) > REFUSALS_MAX:
            del self._refused[next(iter(self._refused))]
        if is_news:
            self.on_refusal(refusal)

    def refused(self) -> list[CreationRefusal]:
        """Return the present refusals, oldest first."""
        since_s = self._clock() - REMEMBERED_S
        self._refused = {
            key: refusal for key, refusal in self._refused.items() if refusal.at_s > since_s
        }
        return list(self._refused.values())


def _shown_name(kind: Kind, body: Json) -> str:
    """Return the name of an object in reports: a Topic's name in Kafka; ``*`` for all Events, since
    one refused Event means that all are refused."""
    if kind is EVENT:
        return "*"
    name = body["spec"].get("topicName") if kind is TOPIC else None
    return str(name or body["metadata"]["name"])


def _is_refusal(error: KubeError) -> bool:
    """Return whether a policy, a quota or a role refuses the object, so that a person has to allow
    it. Other ``Invalid`` errors come from the schema: the object itself is wrong."""
    return isinstance(error, Forbidden) or (isinstance(error, Invalid) and error.by_policy)
