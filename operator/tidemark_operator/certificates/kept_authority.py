"""A certificate authority as it is kept: made once, followed by another step by step, never
replaced.

A cluster has two, which know nothing of each other: that of its brokers and controllers, and that
of its clients. Whoever is trusted as a client is so never as a broker.
"""

import datetime as dt
import logging
from collections.abc import Callable

from tidemark_operator.certificates import rotation
from tidemark_operator.certificates.authority import BadCertificate
from tidemark_operator.certificates.formats import authority_data, read_authority
from tidemark_operator.certificates.keepers import Keeper, Kept
from tidemark_operator.certificates.rotation import Authorities

logger = logging.getLogger(__name__)


class KeptAuthority:
    """One authority of one cluster, under ``name`` in a keeper. ``now``: aware, UTC."""

    def __init__(
        self, keeper: Keeper, name: str, cluster_id: str, now: Callable[[], dt.datetime]
    ) -> None:
        self._keeper = keeper
        self._name = name
        self._cluster_id = cluster_id
        self._now = now

    async def get(self) -> Authorities:
        """As it is kept; made where there is none. Raises :class:`BadCertificate` for what cannot
        be read, or is another cluster's: nothing is ever made in its place."""
        kept = await self._keeper.read(self._name)
        if kept is None:
            made = rotation.first(self._cluster_id, self._now())
            await self._put(made, None)
            logger.info("made the certificate authority %s", self._name)
            return made
        return self._checked(kept)

    async def step(
        self, *, all_have_it: bool, pause: Callable[[Authorities], dt.timedelta], renewal: str = ""
    ) -> bool:
        """One step of its renewal (:func:`rotation.next_step`), where one is due and it was made;
        whether it took one."""
        kept = await self._keeper.read(self._name)
        if kept is None:
            return False
        held = self._checked(kept)
        following = rotation.next_step(
            held, self._now(), all_have_it=all_have_it, renewal=renewal, pause=pause(held)
        )
        if following is held:
            return False
        await self._put(following, kept)
        logger.info("certificate authority %s: %s", self._name, following.phase)
        return True

    def _checked(self, kept: Kept) -> Authorities:
        held = read_authority(kept.data)
        if held.cluster_id != self._cluster_id:
            raise BadCertificate(
                f"{self._name} is the authority of cluster id {held.cluster_id}, not "
                f"{self._cluster_id}: rename it, or restore the right one"
            )
        return held

    async def _put(self, held: Authorities, former: Kept | None) -> None:
        await self._keeper.write(self._name, authority_data(held), former)
