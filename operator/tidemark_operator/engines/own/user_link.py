"""Delivery of users to one broker by ``UserStates``, complete each time.

It starts once the broker has applied its snapshot, and repeats whenever something has changed; at
most one request is in progress. An unacknowledged request is repeated, or replaced by a newer one.
It runs beside the partitions' states, and a failure here does not end their connection.
"""

import asyncio
import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark.wire.users import UserStatesRequest, UserStatesResponse
from tidemark_operator.engines.own.link import EngineListener
from tidemark_operator.listener.channel import Channel

logger = logging.getLogger(__name__)

USERS_TIMEOUT_S = 30.0
REPEAT_S = 5.0
#: Pause after a delivery as a multiple of its duration: thousands of Users that change one by one
#: are sent together, and most of the time is left to other work.
PAUSES = 4
PAUSE_MOST_S = 10.0
#: Backoff for a broker of an earlier version, which does not know the request and closes its
#: connection.
USERS_BACKOFF = Backoff(first_s=1.0, most_s=60.0)

#: The version of the users, and all of them; None before they are known.
Present = Callable[[], tuple[int, UserStatesRequest] | None]


class UserLink:
    """Users as sent over one command connection.

    ``acknowledged_version``: the last one that the broker has acknowledged. ``is_under_way``: a
    request has no answer yet.
    """

    def __init__(self, channel: Channel, listener: EngineListener, present: Present) -> None:
        self.acknowledged_version = 0
        self.is_under_way = False
        self._channel = channel
        self._listener = listener
        self._present = present
        self._acknowledged: UserStatesRequest | None = None
        self._wake = asyncio.Event()
        self._wake.set()

    def wake(self) -> None:
        """Note that something may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Send the users to the broker whenever they change, until the connection ends."""
        # A failed request and a change both lead to another round; `wake` sets the event.
        while not self._channel.closed:
            await self._wake.wait()
            self._wake.clear()
            began_s = asyncio.get_running_loop().time()
            try:
                settled = await self._tell()
            # ``is_under_way`` stays set: this request may be why the connection ended.
            except ConnectionError:
                return
            # Large user lists are paced by the time of their delivery, failures by a fixed one.
            took_s = asyncio.get_running_loop().time() - began_s
            await asyncio.sleep(min(PAUSES * took_s, PAUSE_MOST_S) if settled else REPEAT_S)
            # A failed request is repeated without a new change.
            if not settled:
                self._wake.set()

    async def _tell(self) -> bool:
        """Send the present users if they changed; return False if that must be repeated."""
        # Nothing is sent before every User was read: a missing one would be locked out.
        present = self._present()
        if present is None:
            return True
        version, request = present
        if request != self._acknowledged and not await self._send(request):
            return False
        self.acknowledged_version, self._acknowledged = version, request
        self._listener.on_users(self._channel.broker_id)
        return True

    async def _send(self, request: UserStatesRequest) -> bool:
        """Send one UserStates request; return whether the broker has applied it.

        On a lost connection, ``is_under_way`` stays True: the next connection then knows that the
        broker may have closed it because of this request. Raises ``ConnectionError``.
        """
        self.is_under_way = True
        node_id = self._channel.broker_id
        try:
            response = await self._channel.call_large(request, UserStatesResponse, USERS_TIMEOUT_S)
        except TimeoutError:
            self.is_under_way = False
            logger.warning("broker %d: no response to UserStates, retrying", node_id)
            return False
        # The answer has arrived, so a later end of the connection has another cause.
        self.is_under_way = False
        if response.error_code == int(ErrorCode.stale_controller_epoch):
            self._listener.on_stale(node_id)
        if response.error_code:
            logger.warning(
                "broker %d returned error %d to UserStates", node_id, response.error_code
            )
        return response.error_code == int(ErrorCode.none)
