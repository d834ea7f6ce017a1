"""Of keys that were listed: which does nothing name, and which are nobody's we know?

Keys are listed first, and the heads of their partitions read afterwards: ``orphans`` says why in
this order. Some keys at a time, so that memory is theirs, however large the store.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tidemark.tier import orphans
from tidemark.tier.head import Head, ManifestError
from tidemark.tier.layout import Place, place_of_data, place_of_page, topic_data_prefix
from tidemark.tier.manifest import HeadNotFound, PageNotFound
from tidemark.tier.open import Tier

_HEAD_READS = 3


class Keyed(Protocol):
    """Something that was listed under a key."""

    @property
    def key(self) -> str:
        """Relative to the store's prefix."""


_Item = TypeVar("_Item", bound=Keyed)
_Placed = Sequence[tuple[Place, _Item]]


@dataclass(slots=True)
class Judged(Generic[_Item]):
    """``unnamed``: nothing names them, nor ever will; ``unknown``: with the folder that they lie
    in, which has no head; ``troubles``: partitions of which nobody can say."""

    unnamed: list[_Item] = field(default_factory=list)
    unknown: list[tuple[str, _Item]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


class Naming:
    """The heads of one tier, asked. Calls block and raise StoreUnavailable."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def of_data(self, items: Sequence[_Item]) -> Judged[_Item]:
        """Of objects under ``data/``, or of uploads that are to become such."""
        return self._judge(items, place_of_data, self._of_segments)

    def of_pages(self, items: Sequence[_Item]) -> Judged[_Item]:
        """Of objects under ``pages/``."""
        return self._judge(items, place_of_page, _of_pages)

    def _judge(
        self,
        items: Sequence[_Item],
        parse: Callable[[str], Place],
        look: Callable[[Head, _Placed[_Item]], Judged[_Item]],
    ) -> Judged[_Item]:
        judged: Judged[_Item] = Judged()
        for (topic_id, partition), placed in _placed(items, parse, judged).items():
            found = self._partition(topic_id, partition, placed, look)
            judged.unnamed += found.unnamed
            judged.unknown += found.unknown
            judged.troubles += found.troubles
        return judged

    def _partition(
        self,
        topic_id: uuid.UUID,
        partition: int,
        placed: _Placed[_Item],
        look: Callable[[Head, _Placed[_Item]], Judged[_Item]],
    ) -> Judged[_Item]:
        trouble = ""
        for _ in range(_HEAD_READS):
            try:
                return look(self._tier.manifests.load(topic_id, partition).head, placed)
            except HeadNotFound:
                folders = [(f"{place.folder}{partition}/", item) for place, item in placed]
                return Judged(unknown=folders)
            except PageNotFound as error:
                trouble = str(error)  # dropped since the head was read: another head says more
            except ManifestError as error:
                return Judged(troubles=[str(error)])
        return Judged(troubles=[trouble])

    def _of_segments(self, head: Head, placed: _Placed[_Item]) -> Judged[_Item]:
        folder = topic_data_prefix(head.topic, head.topic_id)
        ours = [(place, item) for place, item in placed if place.folder == folder]
        pages = self._tier.manifests.pages(head.topic_id, head.partition)
        names = orphans.unnamed_segments(head, pages, [place for place, _ in ours])
        return Judged(
            unnamed=[item for place, item in ours if place.name in names],
            # The id is a topic's, the name is not: nobody's we know.
            unknown=[(place.folder, item) for place, item in placed if place.folder != folder],
        )


def _of_pages(head: Head, placed: _Placed[_Item]) -> Judged[_Item]:
    names = orphans.unnamed_pages(head, [place for place, _ in placed])
    return Judged(unnamed=[item for place, item in placed if place.name in names])


def _placed(
    items: Sequence[_Item], parse: Callable[[str], Place], judged: Judged[_Item]
) -> Mapping[tuple[uuid.UUID, int], list[tuple[Place, _Item]]]:
    """By partition; what is no key of ours is unknown."""
    placed: dict[tuple[uuid.UUID, int], list[tuple[Place, _Item]]] = {}
    for item in items:
        try:
            place = parse(item.key)
        except ValueError:
            judged.unknown.append((f"{item.key.rpartition('/')[0]}/", item))
        else:
            placed.setdefault((place.topic_id, place.partition), []).append((place, item))
    return placed
