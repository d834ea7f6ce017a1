"""``ReplicaStates``: a broker's description of its replicas, in pages, before it is admitted.

The pages of a broker are kept until its registration takes them. Their total size is limited. A
page out of order makes the broker restart with the first one.
"""

import uuid
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from tidemark.wire.control import ReplicaStatesRequest, ReplicaStatesResponse, TopicState

#: More replicas than a broker can have.
REPLICAS_MAX = 65_536


@dataclass(slots=True)
class _Pages:
    incarnation_id: uuid.UUID
    topics: list[TopicState] = field(default_factory=list)
    replicas: int = 0
    next_page: int = 0
    is_complete: bool = False


class ReplicaStates:
    """Pages of one term, by broker."""

    def __init__(self) -> None:
        self._pages: dict[int, _Pages] = {}

    def take(self, request: ReplicaStatesRequest) -> ReplicaStatesResponse:
        """Add the next page of a broker's report about its replica states.

        A page that is out of order, of another process or too large is answered with
        INVALID_REQUEST, which makes the broker restart with page 0.
        """
        if request.page == 0:
            self._pages[request.broker_id] = _Pages(request.incarnation_id)
        pages = self._pages.get(request.broker_id)
        # Out of order, of another process, after the last page, or too much.
        if (
            pages is None
            or pages.incarnation_id != request.incarnation_id
            or (pages.next_page, pages.is_complete) != (request.page, False)
            or pages.replicas > REPLICAS_MAX
        ):
            self._pages.pop(request.broker_id, None)
            return ReplicaStatesResponse(error_code=int(ErrorCode.invalid_request))
        pages.topics.extend(request.topics)
        # A topic without partitions counts as well, so the limit also bounds empty topics.
        pages.replicas += sum(len(topic.partitions) + 1 for topic in request.topics)
        pages.next_page += 1
        pages.is_complete = request.is_last
        return ReplicaStatesResponse(error_code=int(ErrorCode.none))

    def take_complete(self, node_id: int, incarnation_id: uuid.UUID) -> list[TopicState] | None:
        """Return all states of this process of a broker, once; None until the last page has
        arrived.
        """
        pages = self._pages.get(node_id)
        if pages is None or not pages.is_complete or pages.incarnation_id != incarnation_id:
            return None
        del self._pages[node_id]
        return pages.topics
