"""Keeps one broker's users equal to what is declared: ``UserStates``, whole each time.

It begins once the broker has applied its snapshot, and is sent again whenever something changed; at
most one is under way. What was not acknowledged is sent again, or made up for by what is newer. It
goes beside the partitions' states, and no failure here ends the connection over which these go.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark.wire.users import UserStatesRequest, UserStatesResponse
from tidemark_operator.listener.channel import Channel

logger = logging.getLogger(__name__)

USERS_TIMEOUT_S = 30.0
REPEAT_S = 5.0
#: After users were told, so many times as long as that took nothing is: thousands of Users that
#: change one by one are told together, and most of the time is left to other things.
PAUSES = 4
PAUSE_MOST_S = 10.0
#: A broker of an earlier version knows no such command and ends its connection: it is left in peace
#: for longer and longer.
DEAF = Backoff(first_s=1.0, most_s=60.0)

#: The version of what is declared, and all of it; None while it is not known yet.
Present = Callable[[], tuple[int, UserStatesRequest] | None]


class UserListener(Protocol):
    """Who is told what a broker answered. In the main loop, none may block."""

    def on_users(self, node_id: int) -> None:
        """A broker has acknowledged the users."""

    def on_stale(self, node_id: int) -> None:
        """The broker has seen a higher controller epoch."""


class UserLink:
    """What one command connection was told of users. ``told``: the version that the broker has
    acknowledged; ``is_under_way``: it has not answered yet."""

    def __init__(self, channel: Channel, listener: UserListener, present: Present) -> None:
        self.told = 0
        self.is_under_way = False
        self._channel = channel
        self._listener = listener
        self._present = present
        self._acknowledged: UserStatesRequest | None = None
        self._wake = asyncio.Event()
        self._wake.set()

    def wake(self) -> None:
        """Something may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Tell until the connection ends (returns) or the task is cancelled."""
        while not self._channel.closed:
            await self._wake.wait()
            self._wake.clear()
            began_s = asyncio.get_running_loop().time()
            try:
                settled = await self._tell()
            except ConnectionError:
                return  # `is_under_way` stands: it may be why the connection ended
            took_s = asyncio.get_running_loop().time() - began_s
            await asyncio.sleep(min(PAUSES * took_s, PAUSE_MOST_S) if settled else REPEAT_S)
            if not settled:
                self._wake.set()

    async def _tell(self) -> bool:
        """False: it has to be said again."""
        present = self._present()
        if present is None:
            return True
        version, request = present
        if request != self._acknowledged and not await self._send(request):
            return False
        self.told, self._acknowledged = version, request
        self._listener.on_users(self._channel.broker_id)
        return True

    async def _send(self, request: UserStatesRequest) -> bool:
        self.is_under_way = True
        node_id = self._channel.broker_id
        try:
            response = await self._channel.call_large(request, UserStatesResponse, USERS_TIMEOUT_S)
        except TimeoutError:
            self.is_under_way = False
            logger.warning("broker %d: no response to UserStates, retrying", node_id)
            return False
        self.is_under_way = False
        if response.error_code == int(ErrorCode.stale_controller_epoch):
            self._listener.on_stale(node_id)
        if response.error_code:
            logger.warning(
                "broker %d returned error %d to UserStates", node_id, response.error_code
            )
        return response.error_code == int(ErrorCode.none)
