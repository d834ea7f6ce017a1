"""Causes of replica moves: users who drain and delete brokers and change the replication factor.

One broker at a time is drained or deleted, and enough brokers remain for the replication factor, so
every request has to be fulfilled in the end. Each change of a row is checked, too
(:meth:`Moves.changed`): invariant "moves" of docs/explanation/placement.md.
"""

from typing import Any

from tidemark_operator.controller import reassignment
from tidemark_operator.controller.state.model import PartitionRow
from tidemark_operator.kube.kinds import BROKER, TOPIC

MOVE_KINDS = ("drain", "factor", "delete broker")


class Moves:
    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    # ------------------------------------------------------------ what users do

    def ask(self, kind: str) -> None:
        cluster, chance = self._cluster, self._cluster.world.chance
        if kind == "factor":
            self._resize(chance.choice((1, 2, 3)))
            return
        present = self._make_again()
        # One broker at a time: a drain may be taken back, a deletion not.
        leaving = [node for node in present if self._leaves(node)]
        if leaving:
            if not self._is_deleting(leaving[0]) and chance.random() < 0.7:
                self._drain(leaving[0], drain=False)
            return
        if len(present) < len(cluster.machines):
            return
        node = chance.choice(present)
        if kind == "drain":
            self._drain(node, drain=True)
        else:
            cluster.checks.note(f"a user deletes broker {node}")
            cluster.kube.delete("user", BROKER, f"broker-{node}")

    def settle(self) -> None:
        """End the faults: from now on the desired state does not change."""
        self._make_again()

    def _resize(self, factor: int) -> None:
        """Not below what has to be in sync: what may be lost would be another question."""
        cluster = self._cluster
        topic = cluster.kube.find(TOPIC, "t")
        if topic is None or factor < cluster.checks.topics["t"].min_isr:
            return
        if factor != topic["spec"]["replicationFactor"]:
            cluster.checks.note(f"a user wants {factor} replicas")
            cluster.kube.edit(TOPIC, "t", {"replicationFactor": factor})

    def _drain(self, node: int, *, drain: bool) -> None:
        self._cluster.checks.note(f"a user says drain: {drain} of broker {node}")
        self._cluster.kube.edit(BROKER, f"broker-{node}", {"drain": drain})

    def _make_again(self) -> list[int]:
        """Recreate brokers whose object was deleted; return the existing ones."""
        cluster = self._cluster
        for node in cluster.machines:
            if cluster.kube.find(BROKER, f"broker-{node}") is None:
                cluster.checks.note(f"a user makes broker {node} again")
                cluster.make_broker(node)
        return sorted(cluster.machines)

    def _leaves(self, node: int) -> bool:
        body = self._cluster.kube.find(BROKER, f"broker-{node}")
        drain = body is not None and body["spec"].get("drain", False)
        return bool(drain) or self._is_deleting(node)

    def _awaits_person(self, node: int) -> bool:
        """Return whether the broker has a replica of a partition of which every complete copy
        was lost.
        """
        rows = self._cluster.checks.rows.values()
        return any(node in row.hosts and not row.isr for row in rows)

    def _is_deleting(self, node: int) -> bool:
        body = self._cluster.kube.find(BROKER, f"broker-{node}")
        return body is not None and "deletionTimestamp" in body["metadata"]

    # ------------------------------------------------------------ what must hold

    def changed(self, old: PartitionRow, row: PartitionRow) -> str:
        """Return the violation in one step of a row; empty if there is none."""
        came, went = set(row.hosts) - set(old.hosts), set(old.hosts) - set(row.hosts)
        filled = sum(replica < 0 for replica in old.replicas) - row.placeholders
        if len(came - set(row.adding)) > max(filled, 0):
            return f"replicas {sorted(came)} are there without having come: {old}, {row}"
        if any(self._leaves(node) for node in came):
            return f"a broker that is to leave was given a replica: {old}, {row}"
        # A replica may go once those that replace it have caught up. A deleted broker's replicas go
        # at once.
        left = {node for node in went - set(old.adding) if not self._is_deleting(node)}
        # One write may contain two decisions: a replica that the second one removed from the ISR is
        # still eligible, so it has every committed record.
        caught_up = {*row.isr, *row.elr}
        if left and set(old.adding) - caught_up - went:
            return f"replicas {sorted(left)} went before others had caught up: {old}, {row}"
        least = min(len(old.isr), self._cluster.checks.topics["t"].min_isr)
        if left and len(caught_up) < least:
            return f"fewer are in sync than have to be: {old}, {row}"
        return ""

    def unsettled(self, key: tuple[str, int]) -> str:
        """Why a partition is not yet where it is wanted."""
        cluster = self._cluster
        topic, row = cluster.kube.find(TOPIC, "t"), cluster.checks.rows.get(key)
        if len(self._make_again()) < len(cluster.machines) or topic is None or row is None:
            return "something is not there"
        for node in cluster.machines:
            if self._is_deleting(node) and not self._awaits_person(node):
                return f"broker {node} is still being deleted"
        if not row.isr:
            return ""  # it waits for a person
        if reassignment.is_moving(row):
            return f"{key} is still moving: {row}"
        if len(row.replicas) != topic["spec"]["replicationFactor"]:
            return f"{key} has another number of replicas than the manifest: {row}"
        left = [node for node in row.hosts if self._leaves(node)]
        if left:
            return f"{key} is still on broker {left[0]}, which is drained: {row}"
        return "" if row.leader == row.hosts[0] else f"{key} is not led as preferred: {row}"
