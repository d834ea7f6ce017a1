"""Number of brokers: which are created, drained and removed."""

from collections.abc import Iterable

from tidemark_operator.controller.scaling import BrokerObject, PlannedBroker, Scale, scale

RACKS = ("a", "b", "c")


def created_brokers(
    node_ids: Iterable[int],
    *,
    racks: tuple[str, ...] = (),
    drained: Iterable[int] = (),
    deleting: Iterable[int] = (),
) -> list[BrokerObject]:
    """Return Brokers that the operator has created."""
    drained, deleting = set(drained), set(deleting)
    return [
        BrokerObject(
            node_id=node_id,
            name=f"broker-{node_id}",
            # Racks are used in turn, as the operator assigns them.
            rack=racks[place % len(racks)] if racks else None,
            made=True,
            drained=node_id in drained,
            deleting=node_id in deleting,
        )
        for place, node_id in enumerate(node_ids)
    ]


def staying(found: Scale) -> list[int]:
    return [item.node_id for item in found.desired if not item.leaving]


def leaving(found: Scale) -> list[int]:
    return [item.node_id for item in found.desired if item.leaving]


def test_readers_are_scaled_apart_from_brokers() -> None:
    brokers = created_brokers((1, 2, 3))
    found = scale(2, ("a", "b"), brokers, is_reader=True)
    assert [(item.node_id, item.name, item.rack, item.is_reader) for item in found.desired] == [
        (1001, "reader-1001", "a", True),
        (1002, "reader-1002", "b", True),
    ]
    readers = [
        BrokerObject(node_id=item.node_id, name=item.name, made=True, drained=True, is_reader=True)
        for item in found.desired
    ]
    # The brokers are not affected, and a surplus Reader is removed at once.
    assert scale(3, (), [*brokers, *readers]).removed == ()
    assert staying(scale(3, (), [*brokers, *readers])) == [1, 2, 3]
    assert scale(1, (), [*brokers, *readers], is_reader=True).removed == ("reader-1002",)
    assert scale(0, (), readers, is_reader=True).removed == ("reader-1001", "reader-1002")


def test_first_brokers_are_spread_over_racks() -> None:
    found = scale(5, RACKS, [])
    assert [(item.node_id, item.rack) for item in found.desired] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
        (4, "a"),
        (5, "b"),
    ]
    assert found.desired[0] == PlannedBroker(node_id=1, name="broker-1", rack="a")
    assert not found.is_leaving


def test_new_broker_gets_free_id_and_name_and_emptiest_rack() -> None:
    others = [BrokerObject(node_id=2, name="foreign"), BrokerObject(node_id=9, name="broker-4")]
    found = scale(3, RACKS, [*created_brokers((1, 3), racks=("a", "c")), *others])
    assert staying(found) == [1, 3, 5], "2 is taken, and so is the name broker-4"
    assert found.desired[-1].rack == "b"


def test_a_rack_is_kept_whatever_the_current_list() -> None:
    found = scale(2, ("x",), created_brokers((1, 2), racks=("a", "b")))
    assert [item.rack for item in found.desired] == ["a", "b"]


def test_highest_ids_are_drained_and_removed_when_empty() -> None:
    # Broker 4 is empty and can go, broker 3 still has to be drained.
    # Of four brokers two are too many.
    found = scale(2, (), created_brokers(range(1, 5), drained=(4,)))
    assert (staying(found), leaving(found), found.removed) == ([1, 2], [3], ("broker-4",))
    assert found.is_leaving


def test_a_draining_broker_stays_when_more_are_requested() -> None:
    # Broker 3 is drained, but it is wanted again.
    found = scale(3, (), created_brokers(range(1, 4), drained=(3,)))
    assert (staying(found), leaving(found), found.removed) == ([1, 2, 3], [], ())


def test_deleted_broker_is_replaced_under_another_id() -> None:
    assert staying(scale(3, (), created_brokers(range(1, 4), deleting=(2,)))) == [1, 3, 4]


def test_foreign_brokers_are_ignored() -> None:
    foreign = [BrokerObject(node_id=node_id, name=f"theirs-{node_id}") for node_id in (1, 2, 3)]
    found = scale(1, (), foreign)
    assert (staying(found), found.removed) == ([4], ())
