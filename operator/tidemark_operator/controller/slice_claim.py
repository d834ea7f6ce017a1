"""Whose PartitionSlices these are: asked before a controller writes anything at all.

A slice says by the id of its cluster whose it is, and so does the Cluster once its status has an
id. A Cluster that has none yet takes its own uid for one; unless slices of its name are there that
another Cluster object left: then a person says by annotation that this Cluster is to go on as that
one, or removes them. Nothing is written until that is clear, so that a Cluster which cannot be
controlled keeps no trace that would stand in the way later.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark.ids import parse_id
from tidemark.reasons import Reason
from tidemark_operator.controller.events import quoted
from tidemark_operator.controller.model import Acceptance

#: Names of slices, or ids, that a message shows.
_SHOWN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class FoundSlice:
    """A slice as it was listed: the id of its cluster, and who wrote last."""

    cluster_id: str
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """The Cluster. ``own_id`` is its uid as Kafka prints ids; ``stored_id`` and ``recorded`` (how
    many slices it has) are what its status says, ``asked`` its annotation."""

    own_id: str
    stored_id: str = ""
    recorded: int | None = None
    asked: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SliceClaim:
    """What the controller goes on with. ``floor``: no slice was written under a higher epoch;
    ``creates``: there never were any; ``lost``: some were there, and are not, with them what stood
    in them."""

    cluster_id: str
    slices: int
    creates: bool
    lost: tuple[str, ...]
    floor: int
    adopted: Acceptance | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimRefused:
    """Why nobody may control the Cluster, and what helps."""

    reason: Reason
    message: str


def claim(
    claimant: Claimant,
    found: Mapping[str, FoundSlice],
    *,
    name_of: Callable[[int], str],
    default: int,
) -> SliceClaim | ClaimRefused:
    """``found`` are all slices under the Cluster's name; ``default`` is how many a new one gets."""
    cluster_id = claimant.stored_id or claimant.own_id
    adopts = _adopts(claimant, found)
    if adopts:
        cluster_id = claimant.asked
    strangers = sorted(name for name, each in found.items() if each.cluster_id != cluster_id)
    if strangers:
        return _strangers(claimant, strangers, sorted({found[n].cluster_id for n in strangers}))
    slices = claimant.recorded or (len(found) if adopts and found else default)
    creates = claimant.recorded is None and not adopts
    missing = tuple(name for name in map(name_of, range(slices)) if name not in found)
    if missing and adopts and found:
        return ClaimRefused(
            Reason.SLICES_MISSING,
            f"{len(missing)} of {slices} PartitionSlices are missing "
            f"({missing[0]}, …), and their original number is unknown. Restore "
            "them from a backup",
        )
    return SliceClaim(
        cluster_id=cluster_id,
        slices=slices,
        creates=creates,
        lost=() if creates else missing,
        floor=max((each.epoch for each in found.values()), default=0),
        adopted=_acceptance(claimant.asked, slices) if adopts else None,
    )


def _adopts(claimant: Claimant, found: Mapping[str, FoundSlice]) -> bool:
    """Whether this Cluster, which is nobody yet, becomes the one that its annotation names: slices
    say that there was one, or none is left, and only brokers may know."""
    named = any(each.cluster_id == claimant.asked for each in found.values())
    named = named or (not found and _is_id(claimant.asked))
    return named and not claimant.stored_id and claimant.asked != claimant.own_id


def _is_id(text: str) -> bool:
    try:
        parse_id(text)
    except ValueError:
        return False
    return True


def _acceptance(cluster_id: str, slices: int) -> Acceptance:
    return Acceptance(
        annotation=ADOPT_CLUSTER_ID,
        value=cluster_id,
        effect=f"took over {slices} PartitionSlices and the cluster id",
    )


def _strangers(claimant: Claimant, names: Sequence[str], ids: Sequence[str]) -> ClaimRefused:
    text = f"{len(names)} PartitionSlices ({names[0]}, …) belong to an earlier Cluster of this name"
    if len(ids) > 1:
        shown = ", ".join(ids[:_SHOWN])
        remedy = (
            f"and not all to the same one (cluster ids {shown}). Keep those of "
            "one cluster, and delete the others with their finalizers"
        )
    elif claimant.stored_id:
        remedy = (
            f"with the cluster id {ids[0]}, but this Cluster has the id "
            f"{claimant.stored_id}. To continue that cluster, delete this "
            f"Cluster and create it with the annotation {ADOPT_CLUSTER_ID}: "
            f"{ids[0]}"
        )
    else:
        remedy = (
            f"with the cluster id {ids[0]}. To continue that cluster with its "
            "topics and brokers, annotate this Cluster with "
            f"{ADOPT_CLUSTER_ID}: {ids[0]}; to start a new cluster instead, delete these "
            "PartitionSlices with their finalizers"
        )
        if claimant.asked:
            remedy = f"{remedy} (the annotation names {quoted(claimant.asked)})"
    return ClaimRefused(Reason.SLICES_OF_ANOTHER_CLUSTER, f"{text}, {remedy}")
