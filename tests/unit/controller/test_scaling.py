"""Number of brokers: which are created, drained and removed."""

from collections.abc import Iterable

from tidemark_operator.controller.scaling import BrokerObject, PlannedBroker, Scale, scale

RACKS = ("a", "b", "c")


def made(
    node_ids: Iterable[int],
    *,
    racks: tuple[str, ...] = (),
    drained: Iterable[int] = (),
    deleting: Iterable[int] = (),
) -> list[BrokerObject]:
    """Brokers that the operator has made."""
    drained, deleting = set(drained), set(deleting)
    return [
        BrokerObject(
            node_id=node_id,
            name=f"broker-{node_id}",
            rack=racks[place % len(racks)] if racks else None,
            made=True,
            drained=node_id in drained,
            deleting=node_id in deleting,
        )
        for place, node_id in enumerate(node_ids)
    ]


def staying(found: Scale) -> list[int]:
    return [item.node_id for item in found.wanted if not item.leaving]


def leaving(found: Scale) -> list[int]:
    return [item.node_id for item in found.wanted if item.leaving]


def test_the_first_ones_are_spread_over_the_racks() -> None:
    found = scale(5, RACKS, [])
    assert [(item.node_id, item.rack) for item in found.wanted] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
        (4, "a"),
        (5, "b"),
    ]
    assert found.wanted[0] == PlannedBroker(node_id=1, name="broker-1", rack="a")
    assert not found.is_leaving


def test_a_new_one_has_a_free_id_and_a_free_name_and_the_emptiest_rack() -> None:
    others = [BrokerObject(node_id=2, name="theirs"), BrokerObject(node_id=9, name="broker-4")]
    found = scale(3, RACKS, [*made((1, 3), racks=("a", "c")), *others])
    assert staying(found) == [1, 3, 5], "2 is taken, and so is the name broker-4"
    assert found.wanted[-1].rack == "b"


def test_a_rack_is_kept_whatever_the_current_list() -> None:
    found = scale(2, ("x",), made((1, 2), racks=("a", "b")))
    assert [item.rack for item in found.wanted] == ["a", "b"]


def test_of_too_many_the_highest_ids_are_drained_and_removed_once_they_are_empty() -> None:
    found = scale(2, (), made(range(1, 5), drained=(4,)))
    assert (staying(found), leaving(found), found.removed) == ([1, 2], [3], ("broker-4",))
    assert found.is_leaving


def test_a_draining_broker_stays_when_more_are_requested() -> None:
    found = scale(3, (), made(range(1, 4), drained=(3,)))
    assert (staying(found), leaving(found), found.removed) == ([1, 2, 3], [], ())


def test_one_that_a_person_deletes_is_replaced_under_another_id() -> None:
    assert staying(scale(3, (), made(range(1, 4), deleting=(2,)))) == [1, 3, 4]


def test_brokers_that_others_made_are_not_touched() -> None:
    theirs = [BrokerObject(node_id=node_id, name=f"theirs-{node_id}") for node_id in (1, 2, 3)]
    found = scale(1, (), theirs)
    assert (staying(found), found.removed) == ([4], ())
