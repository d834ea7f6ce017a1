"""Ownership of PartitionSlices, case by case, and the remedy that each refusal offers."""

from typing import Any

from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark_operator.controller.slice_claim import (
    Claimant,
    FoundSlice,
    SliceClaim,
    claim,
)
from tidemark_operator.controller.state.model import Blocker

SLICES = 4


def name_of(index: int) -> str:
    return f"main-{index:02d}"


def left_by(cluster_id: str, slices: int = SLICES, epoch: int = 3) -> dict[str, FoundSlice]:
    return {name_of(index): FoundSlice(cluster_id, epoch) for index in range(slices)}


def decide_claim(found: dict[str, FoundSlice], **claimant: Any) -> SliceClaim | Blocker:
    return claim(Claimant(own_id="me", **claimant), found, name_of=name_of, default=SLICES)


def granted(found: dict[str, FoundSlice], **claimant: Any) -> SliceClaim:
    answer = decide_claim(found, **claimant)
    assert isinstance(answer, SliceClaim), answer
    return answer


def refused(found: dict[str, FoundSlice], **claimant: Any) -> Blocker:
    answer = decide_claim(found, **claimant)
    assert isinstance(answer, Blocker), answer
    return answer


def test_new_cluster_creates_its_slices() -> None:
    claimed = granted({})
    assert (claimed.cluster_id, claimed.slices, claimed.creates) == ("me", SLICES, True)
    assert granted(left_by("me", 2)).creates, "an earlier try of its own made some"


def test_existing_cluster_continues_and_detects_lost_slices() -> None:
    known = {"stored_id": "me", "recorded": SLICES}
    claimed = granted(left_by("me"), **known)
    assert not claimed.creates
    assert claimed.floor == 3
    assert claimed.lost == ()
    # Three of four recorded slices exist.
    lost = granted(left_by("me", 3), **known)
    assert (lost.lost, lost.creates) == (("main-03",), False)


def test_annotation_adopts_the_slices_of_another_cluster() -> None:
    refusal = refused(left_by("other"))
    assert refusal.reason == "SlicesOfAnotherCluster"
    assert f"{ADOPT_CLUSTER_ID}: other" in refusal.message
    claimed = granted(left_by("other"), requested_id="other")
    assert (claimed.cluster_id, claimed.slices, claimed.creates) == ("other", SLICES, False)
    assert claimed.adopted is not None
    assert (claimed.adopted.annotation, claimed.adopted.value) == (ADOPT_CLUSTER_ID, "other")


def test_wrong_cluster_id_is_refused_with_the_right_one() -> None:
    refusal = refused(left_by("other"), requested_id="another")
    assert f"{ADOPT_CLUSTER_ID}: other" in refusal.message
    assert "names another" in refusal.message


def test_cluster_with_an_id_cannot_adopt_another() -> None:
    refusal = refused(left_by("other"), stored_id="me", recorded=SLICES, requested_id="other")
    assert "delete this Cluster and create it" in refusal.message
    assert f"{ADOPT_CLUSTER_ID}: other" in refusal.message


def test_slices_of_two_clusters_belong_to_neither() -> None:
    mixed = left_by("other") | {name_of(0): FoundSlice("third", 1)}
    for named in ("", "other", "third"):
        assert refused(mixed, requested_id=named).reason == "SlicesOfAnotherCluster"
    assert "Keep those of one" in refused(mixed).message


def test_incomplete_slices_cannot_be_adopted() -> None:
    gap = {name: item for name, item in left_by("other").items() if name != name_of(1)}
    assert refused(gap, requested_id="other").reason == "SlicesMissing"


def test_cluster_without_slices_is_adopted_by_its_id() -> None:
    cluster_id = "AAAAAAAAQACAAAAAAAAAAQ"
    claimed = granted({}, requested_id=cluster_id)
    assert (claimed.cluster_id, claimed.slices, claimed.creates) == (cluster_id, SLICES, False)
    assert len(claimed.lost) == SLICES
    assert claimed.adopted is not None
    # A value that is no cluster id is ignored when there is nothing to adopt.
    assert granted({}, requested_id="no id").cluster_id == "me"


def test_used_annotation_has_no_further_effect() -> None:
    known = {"stored_id": "other", "recorded": SLICES}
    assert granted(left_by("other"), requested_id="other", **known).adopted is None
    assert granted(left_by("other"), requested_id="third", **known).adopted is None
