"""Ownership of PartitionSlices, case by case, and the remedy that each refusal offers."""

from typing import Any

from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark_operator.controller.slice_claim import (
    Claimant,
    ClaimRefused,
    FoundSlice,
    SliceClaim,
    claim,
)

SLICES = 4


def name_of(index: int) -> str:
    return f"main-{index:02d}"


def left_by(cluster_id: str, slices: int = SLICES, epoch: int = 3) -> dict[str, FoundSlice]:
    return {name_of(index): FoundSlice(cluster_id, epoch) for index in range(slices)}


def asked(found: dict[str, FoundSlice], **claimant: Any) -> SliceClaim | ClaimRefused:
    return claim(Claimant(own_id="me", **claimant), found, name_of=name_of, default=SLICES)


def granted(found: dict[str, FoundSlice], **claimant: Any) -> SliceClaim:
    answer = asked(found, **claimant)
    assert isinstance(answer, SliceClaim), answer
    return answer


def refused(found: dict[str, FoundSlice], **claimant: Any) -> ClaimRefused:
    answer = asked(found, **claimant)
    assert isinstance(answer, ClaimRefused), answer
    return answer


def test_a_new_cluster_is_itself_and_makes_its_slices() -> None:
    claimed = granted({})
    assert (claimed.cluster_id, claimed.slices, claimed.creates) == ("me", SLICES, True)
    assert granted(left_by("me", 2)).creates, "an earlier try of its own made some"


def test_a_cluster_with_slices_continues_with_all_of_them_and_knows_the_lost_ones() -> None:
    known = {"stored_id": "me", "recorded": SLICES}
    claimed = granted(left_by("me"), **known)
    assert not claimed.creates
    assert claimed.floor == 3
    assert claimed.lost == ()
    lost = granted(left_by("me", 3), **known)
    assert (lost.lost, lost.creates) == (("main-03",), False)


def test_slices_of_another_cluster_are_taken_over_by_an_annotation_that_names_it() -> None:
    refusal = refused(left_by("other"))
    assert refusal.reason == "SlicesOfAnotherCluster"
    assert f"{ADOPT_CLUSTER_ID}: other" in refusal.message
    claimed = granted(left_by("other"), asked="other")
    assert (claimed.cluster_id, claimed.slices, claimed.creates) == ("other", SLICES, False)
    assert claimed.adopted is not None
    assert (claimed.adopted.annotation, claimed.adopted.value) == (ADOPT_CLUSTER_ID, "other")


def test_a_wrong_value_is_refused_with_the_right_one() -> None:
    refusal = refused(left_by("other"), asked="another")
    assert f"{ADOPT_CLUSTER_ID}: other" in refusal.message
    assert "names another" in refusal.message


def test_a_cluster_that_has_an_id_does_not_become_another() -> None:
    refusal = refused(left_by("other"), stored_id="me", recorded=SLICES, asked="other")
    assert "delete this Cluster and create it" in refusal.message
    assert f"{ADOPT_CLUSTER_ID}: other" in refusal.message


def test_slices_of_two_clusters_belong_to_neither() -> None:
    mixed = left_by("other") | {name_of(0): FoundSlice("third", 1)}
    for wanted in ("", "other", "third"):
        assert refused(mixed, asked=wanted).reason == "SlicesOfAnotherCluster"
    assert "Keep those of one" in refused(mixed).message


def test_an_adoption_of_slices_that_are_not_whole_is_none() -> None:
    gap = {name: item for name, item in left_by("other").items() if name != name_of(1)}
    assert refused(gap, asked="other").reason == "SlicesMissing"


def test_a_cluster_of_which_nothing_but_brokers_is_left_is_taken_over_with_its_id() -> None:
    cluster_id = "AAAAAAAAQACAAAAAAAAAAQ"
    claimed = granted({}, asked=cluster_id)
    assert (claimed.cluster_id, claimed.slices, claimed.creates) == (cluster_id, SLICES, False)
    assert len(claimed.lost) == SLICES
    assert claimed.adopted is not None
    assert granted({}, asked="no id").cluster_id == "me"


def test_an_annotation_that_was_acted_upon_changes_nothing_more() -> None:
    known = {"stored_id": "other", "recorded": SLICES}
    assert granted(left_by("other"), asked="other", **known).adopted is None
    assert granted(left_by("other"), asked="third", **known).adopted is None
