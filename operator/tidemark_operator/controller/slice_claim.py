"""Ownership of PartitionSlices, checked before a controller writes anything.

A slice names its cluster by id, and so does the Cluster once its status has an id. A Cluster
without an id uses its own uid, unless slices under its name were left by another Cluster object.
Then a person decides by annotation that this Cluster continues as that one, or removes the slices.
Nothing is written before that is clear, so that a refused Cluster leaves no trace that would be in
the way later.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark.ids import parse_id
from tidemark.message_text import quoted
from tidemark.reasons import Reason
from tidemark_operator.controller.state.model import Acceptance, Blocker

#: Slice names, or ids, in a message.
_SHOWN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class FoundSlice:
    """A listed slice: the id of its cluster, and the controller epoch of its last write."""

    cluster_id: str
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """The Cluster.

    ``own_id`` is its uid in Kafka's form. ``stored_id`` and ``recorded`` (the number of slices) are
    from its status, ``requested_id`` from its annotation.
    """

    own_id: str
    stored_id: str = ""
    recorded: int | None = None
    requested_id: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SliceClaim:
    """Accepted claim.

    ``floor`` is the highest controller epoch of any slice. ``creates``: there never were any
    slices. ``lost``: slices that existed and are missing, together with their rows.
    """

    cluster_id: str
    slices: int
    creates: bool
    lost: tuple[str, ...]
    floor: int
    adopted: Acceptance | None = None


def claim(
    claimant: Claimant,
    found: Mapping[str, FoundSlice],
    *,
    name_of: Callable[[int], str],
    default: int,
) -> SliceClaim | Blocker:
    """Decide whether this Cluster object may own the PartitionSlices that exist under its name.

    Returns the claim, or why it is refused. ``found``: all slices under the Cluster's name, by
    object name. ``name_of``: name of the slice with a number. ``default``: number of slices of a
    new Cluster.
    """
    cluster_id = claimant.stored_id or claimant.own_id
    adopts = _adopts(claimant, found)
    if adopts:
        cluster_id = claimant.requested_id
    # Slices of another cluster id belong to an earlier Cluster of this name.
    strangers = sorted(name for name, slice_ in found.items() if slice_.cluster_id != cluster_id)
    if strangers:
        return _strangers(claimant, strangers, sorted({found[n].cluster_id for n in strangers}))
    # An adopted set of slices determines their number, because the hash of a partition depends on
    # it.
    slices = claimant.recorded or (len(found) if adopts and found else default)
    creates = claimant.recorded is None and not adopts
    missing = tuple(name for name in map(name_of, range(slices)) if name not in found)
    # A gap leaves that number unknown, and with it the home of every row.
    if missing and adopts and found:
        return Blocker(
            reason=Reason.SLICES_MISSING,
            message=f"{len(missing)} of {slices} PartitionSlices are missing "
            f"({missing[0]}, …), and their original number is unknown. Restore "
            "them from a backup",
        )
    return SliceClaim(
        cluster_id=cluster_id,
        slices=slices,
        creates=creates,
        lost=() if creates else missing,
        floor=max((slice_.epoch for slice_ in found.values()), default=0),
        adopted=_acceptance(claimant.requested_id, slices) if adopts else None,
    )


def _adopts(claimant: Claimant, found: Mapping[str, FoundSlice]) -> bool:
    """Return whether a Cluster without an id takes over the one that its annotation names.

    Slices prove that it existed, or there are none left and only brokers may know it.
    """
    named = any(slice_.cluster_id == claimant.requested_id for slice_ in found.values())
    named = named or (not found and _is_id(claimant.requested_id))
    return named and not claimant.stored_id and claimant.requested_id != claimant.own_id


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


def _strangers(claimant: Claimant, names: Sequence[str], ids: Sequence[str]) -> Blocker:
    """Return the refusal of a Cluster because of slices of an earlier Cluster of its name.

    ``names`` of the slices and ``ids`` of their clusters; the remedy depends on both.
    """
    text = f"{len(names)} PartitionSlices ({names[0]}, …) belong to an earlier Cluster of this name"
    # Slices of several clusters cannot be continued as one: their partitions exclude each other.
    if len(ids) > 1:
        shown = ", ".join(ids[:_SHOWN])
        remedy = (
            f"and not all to the same one (cluster ids {shown}). Keep those of "
            "one cluster, and delete the others with their finalizers"
        )
    # This Cluster has an id and perhaps data of its own, so it cannot become the other one.
    elif claimant.stored_id:
        remedy = (
            f"with the cluster id {ids[0]}, but this Cluster has the id "
            f"{claimant.stored_id}. To continue that cluster, delete this "
            f"Cluster and create it with the annotation {ADOPT_CLUSTER_ID}: "
            f"{ids[0]}"
        )
    # A Cluster without an id may still become the earlier one.
    else:
        remedy = (
            f"with the cluster id {ids[0]}. To continue that cluster with its "
            "topics and brokers, annotate this Cluster with "
            f"{ADOPT_CLUSTER_ID}: {ids[0]}; to start a new cluster instead, delete these "
            "PartitionSlices with their finalizers"
        )
        if claimant.requested_id:
            remedy = f"{remedy} (the annotation names {quoted(claimant.requested_id)})"
    return Blocker(reason=Reason.SLICES_OF_ANOTHER_CLUSTER, message=f"{text}, {remedy}")
