"""Informer: all objects of one kind as they change, from a paged list and then a watch.

It serves the kinds with thousands of objects, for which a general framework would keep a task and a
copy of each. It holds one page, or the result of one read of the connection; at rest only a
version. It reads no faster than the follower processes: the rest waits at the API server.

A watch that ends is resumed at the version it has reached, without loss or repetition. A silent one
is abandoned (the API server sends a bookmark each minute). Everything is listed again only if that
version is too old (410), or after an answer that cannot be resumed from; deleted objects are then
missing from the list. All failures back off.
"""

import asyncio
import contextlib
import logging
import random
import time
from typing import Protocol

from tidemark.backoff import Backoff
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Expired,
    KubeError,
    NotFound,
    error_of,
)
from tidemark_operator.kube.kinds import Json, Key, Kind, key_of, resource_version

logger = logging.getLogger(__name__)

RETRY = Backoff(first_s=0.2, most_s=10.0)
#: Retry interval in seconds while the kind is not served.
NOT_SERVED_S = 3.0
#: Longest silence of a watch in seconds: a bookmark and a half.
SILENCE_S = 90.0
#: A watch that lasted this long, or delivered something, was no failure.
GOOD_S = 5.0
#: After this many failures in a row everything is listed. An API server whose etcd was restored
#: answers an unknown version like a passing failure.
LISTED_AFTER = 8


class Follower(Protocol):
    """Receiver of the objects. Each call is short: the next piece is read after it."""

    def before_list(self, kind: Kind) -> int:
        """Prepare for a list of all objects of the kind; return the version that is known."""

    def list_started(self, kind: Kind, version: int, known: int) -> None:
        """Take in the start of a list of ``version``; ``known`` is the result of ``asking``."""

    def list_item(self, kind: Kind, body: Json, version: int) -> None:
        """Take in an object from a list of ``version``; it may be known."""

    def watch_event(self, body: Json, gone: bool) -> None:
        """Take in a changed or deleted object from the watch; it may be known."""

    def list_finished(self, kind: Kind, present: set[Key], version: int) -> None:
        """Finish the list of all objects as of ``version``: a watch has started there."""


class Informer:
    """Informer of one kind in one namespace."""

    def __init__(self, api: KubeApi, kind: Kind, namespace: str, follower: Follower) -> None:
        """Prepare an informer; ``follower`` receives the objects."""
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._follower = follower
        #: Version up to which the follower knows everything; 0: list everything.
        self._version = 0
        #: Keys of the list, until a watch continues from there.
        self._present: set[Key] | None = None
        self._failures = 0
        self._not_served = False
        #: Start of the current watch, in monotonic seconds.
        self._agreed_s: float | None = None

    async def run(self) -> None:
        """Follow the kind until cancelled; no failure ends it."""
        while True:
            pause_s = await self._turn()
            await asyncio.sleep(pause_s)

    async def _turn(self) -> float:
        """Run one watch, after a list if necessary; return the seconds until the next one.

        After most errors the watch continues from the last version. Otherwise the objects are
        listed again.
        """
        # A version of 0 means that a list is necessary.
        self._agreed_s, from_version = None, self._version
        pause_s = 0.0
        try:
            if not self._version:
                await self._list()
            await self._watch()
        except NotFound as error:
            self._version = 0
            self._say_not_served(error)
            return NOT_SERVED_S
        except ApiServerUnavailable as error:
            logger.debug("%s: %s", self._kind.plural, error)
            pause_s = error.retry_after_s
        # No response of the server, however malformed, may end the informer.
        except Exception as error:  # noqa: BLE001
            level = logging.INFO if isinstance(error, Expired) else logging.WARNING
            logger.log(level, "relisting %s: %s", self._kind.plural, _reason(error))
            self._version = 0
        # Progress resets the backoff, even if the watch ended with an error.
        is_good = self._has_lasted or self._version > from_version > 0
        self._failures = 0 if is_good else self._failures + 1
        # After several failures in a row, try a list instead of a watch.
        if self._failures % LISTED_AFTER == LISTED_AFTER - 1:
            self._version = 0
        return max(pause_s, RETRY.pause_s(self._failures, jitter=random.random()))

    @property
    def _has_lasted(self) -> bool:
        return self._agreed_s is not None and time.monotonic() - self._agreed_s > GOOD_S

    async def _list(self) -> None:
        """List all objects of the kind and pass them to the follower."""
        present: set[Key] = set()
        known, version = self._follower.before_list(self._kind), 0
        async with contextlib.aclosing(self._api.pages(self._kind, self._namespace)) as pages:
            async for page in pages:
                if not version:
                    self._follower.list_started(self._kind, page.resource_version, known)
                version = page.resource_version
                for body in page:
                    present.add(key_of(body))
                    self._follower.list_item(self._kind, body, version)
                # Let other tasks run: thousands of pages must not block the loop.
                await asyncio.sleep(0)
        self._version, self._present = version, present

    async def _watch(self) -> None:
        """Run one watch until it ends, and pass its events to the follower."""
        watch = self._api.watch(self._kind, self._namespace, self._version, silence_s=SILENCE_S)
        # The first list of events is empty, and shows that the server has accepted the watch.
        async with contextlib.aclosing(watch) as pieces:
            async for events in pieces:
                self._agreed_s = self._agreed_s or time.monotonic()
                # Only an accepted watch proves that nothing is missed after the list.
                if self._present is not None:
                    self._follower.list_finished(self._kind, self._present, self._version)
                    self._present = None
                self._not_served = False
                for event in events:
                    self._take(str(event["type"]), event["object"])
                # As above: a burst of events must not block the loop.
                await asyncio.sleep(0)

    def _take(self, type_: str, body: Json) -> None:
        """Process one event of a watch. Raises :class:`Expired` if a new list is necessary."""
        # An error inside a watch is a Status object; its code 410 requires a list.
        if type_ == "ERROR":
            status = int(body.get("code") or 0)
            message = str(body.get("message", body))
            raise error_of(status, message.encode(), None, f"watch of {self._kind.plural}")
        version = resource_version(body)
        if type_ != "BOOKMARK":
            self._follower.watch_event(body, gone=type_ == "DELETED")
        # A bookmark below the last version: etcd was restored from a backup, so list everything.
        elif 0 < version < self._version:
            raise Expired(
                410, f"the API server's data was restored from version {self._version} to {version}"
            )
        self._version = max(version, self._version)

    def _say_not_served(self, error: NotFound) -> None:
        """Log once that the kind is not served."""
        if not self._not_served:
            logger.warning(
                "the API server does not serve %s.%s yet; it is queried until "
                "it does. If this persists, install the resource definitions "
                "(crds/): %s",
                self._kind.plural,
                self._kind.group,
                error,
            )
        self._not_served = True


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, KubeError) else f"{type(error).__name__}: {error}"
