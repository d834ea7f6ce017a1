"""All objects of one kind, as they are and as they change: a list by pages, then a watch from it.

For the kinds whose objects come in thousands, of which a general framework would keep a task and a
copy each. What it holds of them is one page, or what one read of the connection has brought, and at
rest a version. It reads no faster than what it brings is taken: the rest waits at the API server.

A watch that ends goes on at the version that it has reached, with nothing lost and nothing twice; a
silent one is given up (the API server sends a bookmark each minute). Only where that version is
too old (410), or the API server says what cannot be gone on with, is everything listed again; what
was deleted meanwhile is found by its absence. All failures wait, longer each time.
"""

import asyncio
import contextlib
import logging
import random
import time
from typing import Protocol

from tidemark.backoff import Backoff
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Expired, KubeError, NotFound, Unavailable, error_of
from tidemark_operator.kube.kinds import Json, Key, Kind, key_of, resource_version

logger = logging.getLogger(__name__)

RETRY = Backoff(first_s=0.2, most_s=10.0)
#: A kind that is not served yet is asked for this often.
NOT_SERVED_S = 3.0
#: A bookmark and a half.
SILENCE_S = 90.0
#: A watch that lasted as long, or brought something, was a good one.
GOOD_S = 5.0
#: After so many failures in a row everything is listed, whatever they were: an API server whose
#: etcd was restored answers a version that it does not know (yet) like a passing failure.
LISTED_AFTER = 8


class Follower(Protocol):
    """Whom objects are brought to. Each call is short: the next piece is read after it."""

    def asking(self, kind: Kind) -> int:
        """All objects of the kind are asked for; the version that is known."""

    def listing(self, kind: Kind, version: int, known: int) -> None:
        """They come, as of ``version``; ``known`` when they were asked for."""

    def found(self, kind: Kind, body: Json, version: int) -> None:
        """An object stands in a list that is as of ``version``. It may be known already."""

    def brought(self, body: Json, gone: bool) -> None:
        """The watch says that an object is as it says, or is gone. It may be known already."""

    def listed(self, kind: Kind, present: set[Key], version: int) -> None:
        """All objects of the kind that there were at ``version`` have been found, and a watch from
        there on has begun."""


class Informer:
    """Of one kind in one namespace."""

    def __init__(self, api: KubeApi, kind: Kind, namespace: str, follower: Follower) -> None:
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._follower = follower
        #: Until where it has been told; 0: everything is to be listed.
        self._version = 0
        #: What was listed, until a watch goes on from there.
        self._present: set[Key] | None = None
        self._failures = 0
        self._not_served = False
        #: Since when the watch has been under way.
        self._agreed_s: float | None = None

    async def run(self) -> None:
        """Until cancelled; no failure ends it."""
        while True:
            pause_s = await self._turn()
            await asyncio.sleep(pause_s)

    async def _turn(self) -> float:
        """One watch, with a list before it where one is needed; how long to wait then."""
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
        except Unavailable as error:
            logger.debug("%s: %s", self._kind.plural, error)
            pause_s = error.retry_after_s
        except Exception as error:  # noqa: BLE001 - whatever an API server says, it is asked again
            level = logging.INFO if isinstance(error, Expired) else logging.WARNING
            logger.log(level, "relisting %s: %s", self._kind.plural, _reason(error))
            self._version = 0
        is_good = self._has_lasted or self._version > from_version > 0
        self._failures = 0 if is_good else self._failures + 1
        if self._failures % LISTED_AFTER == LISTED_AFTER - 1:
            self._version = 0
        return max(pause_s, RETRY.pause_s(self._failures, jitter=random.random()))

    @property
    def _has_lasted(self) -> bool:
        return self._agreed_s is not None and time.monotonic() - self._agreed_s > GOOD_S

    async def _list(self) -> None:
        """Tell of all there are."""
        present: set[Key] = set()
        known, version = self._follower.asking(self._kind), 0
        async with contextlib.aclosing(self._api.pages(self._kind, self._namespace)) as pages:
            async for page in pages:
                if not version:
                    self._follower.listing(self._kind, page.resource_version, known)
                version = page.resource_version
                for body in page:
                    present.add(key_of(body))
                    self._follower.found(self._kind, body, version)
                await asyncio.sleep(0)
        self._version, self._present = version, present

    async def _watch(self) -> None:
        watch = self._api.watch(self._kind, self._namespace, self._version, silence_s=SILENCE_S)
        async with contextlib.aclosing(watch) as pieces:
            async for events in pieces:
                self._agreed_s = self._agreed_s or time.monotonic()
                if self._present is not None:
                    self._follower.listed(self._kind, self._present, self._version)
                    self._present = None
                self._not_served = False
                for event in events:
                    self._take(str(event["type"]), event["object"])
                await asyncio.sleep(0)

    def _take(self, type_: str, body: Json) -> None:
        if type_ == "ERROR":
            status = int(body.get("code") or 0)
            message = str(body.get("message", body))
            raise error_of(status, message.encode(), None, f"watch of {self._kind.plural}")
        version = resource_version(body)
        if type_ != "BOOKMARK":
            self._follower.brought(body, gone=type_ == "DELETED")
        elif 0 < version < self._version:
            raise Expired(
                410, f"the API server's data was restored from version {self._version} to {version}"
            )
        self._version = max(version, self._version)

    def _say_not_served(self, error: NotFound) -> None:
        """Once, however often it is asked."""
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
