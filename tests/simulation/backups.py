"""The API's data after disasters: slices that are deleted, or everything as it was some time ago.

As from a backup of etcd: slices, Topics, Brokers and the Cluster's status together, while operators
are down, or under those that run. Then versions are those of the backup, the next ones are raised
(`etcdutl snapshot restore --bump-revision`), and watches restart sooner or later. The next writer
has to detect that the data is old (invariant 24 fails as soon as a row is written that goes back),
and no acknowledged record may be lost by it (invariant 1). It strikes while brokers run, and no
other fault happens until the operators are back.

Or one broker goes down shortly before, and stays down for a while afterwards. Its partitions keep
their places and are led again without it, where the others prove what was committed. The topic may
have grown since the backup. In one kind the third broker has left the ISR before, and the second
one loses its power with its unflushed tail: then the two that report prove nothing, and only the
broker that is down has all committed records.
"""

import copy
from typing import Any

from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC, Json, Kind

_UNDER = "old data under operators"
_DOWN = "old data, a broker down"
_UNDER_DOWN = "old data under operators, a broker down"
_TORN_DOWN = "old data, a broker down, a tail lost"
BACKUP_KINDS = ("slices lost", "old data", _UNDER, _DOWN, _UNDER_DOWN, _TORN_DOWN)
_EVERY_S = 3.0
_BEFORE_S = 8.0
_AFTER_S = 12.0
#: A broker goes down so long before the data is put back, at most: sessions last for 9 s.
_DOWN_BEFORE_S = 12.0
#: Sessions, first reports, and elections by log end: within this time the others lead.
_LED_AFTER_S = 30.0
#: The third broker is behind for so long: it leaves the ISR after `replica.lag.time.max.ms`, 2 s.
_BEHIND_S = 5.0
_PARTITIONS_MAX = 6
_KINDS: tuple[Kind, ...] = (CLUSTER, TOPIC, BROKER, PARTITION_SLICE)


class Backups:
    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._copies: list[list[Json]] = []
        #: No process can recover what only an unavailable broker knows.
        self.calm_until_s = 0.0

    def begin(self) -> None:
        """Make a backup now and then, once there is something in it."""
        cluster = self._cluster
        if not cluster.faulting:
            return
        cluster.world.after(_EVERY_S, self.begin)
        topic = cluster.kube.find(TOPIC, "t")
        # A backup from before the topic was placed would make it new again.
        if ((topic or {}).get("status") or {}).get("partitionsPlaced"):
            bodies = (body for kind in _KINDS for body in cluster.kube.of_kind(kind))
            self._copies.append([copy.deepcopy(body) for body in bodies])

    def strike(self, kind: str) -> None:
        """Once all brokers know what was decided so far."""
        cluster = self._cluster
        if not self._copies:
            return
        # All brokers run and receive what was decided so far.
        self.calm_until_s = cluster.world.now_s + _BEFORE_S + _AFTER_S
        # Only running brokers can report what the restored API does not know.
        for machine in cluster.machines.values():
            machine.start()
        cluster.network.quiet()
        # Kinds with a broker that is down have more to prepare.
        if kind == _TORN_DOWN:
            self.calm_until_s += _BEHIND_S + _LED_AFTER_S
            cluster.world.after(_BEFORE_S, self._fall_behind)
            return
        if kind not in (_DOWN, _UNDER_DOWN):
            cluster.world.after(_BEFORE_S, self._strike, kind)
            return
        # Before, around, and after the end of the session: the row may or may not name another
        # leader.
        down_s = cluster.world.chance.choice((0.0, 0.5, _DOWN_BEFORE_S))
        self.calm_until_s += down_s + _LED_AFTER_S
        cluster.world.after(0.5, self._grow, list(self._copies))
        cluster.world.after(_BEFORE_S, self._go_down, kind, down_s)

    def _strike(self, kind: str) -> None:
        """The operators are down meanwhile, and come back one after the other; or they are not."""
        cluster = self._cluster
        chance = cluster.world.chance
        if not cluster.faulting:
            return
        # Operators that run keep their caches and watches while the data changes under them.
        if kind in (_UNDER, _UNDER_DOWN):
            self._restore_under()
            return
        for name in cluster.operators:
            cluster.operators[name].kill()
            cluster.world.after(0.2 + 3 * chance.random(), cluster.start_operator, name)
        if kind == "slices lost":
            self._lose()
        else:
            self._restore()

    # ------------------------------------------------------------ a broker that is down

    def _grow(self, copies: list[list[Json]]) -> None:
        """Add partitions that the existing backups do not know."""
        cluster, chance = self._cluster, self._cluster.world.chance
        topic = cluster.kube.find(TOPIC, "t")
        present = len(cluster.clients.keys)
        # Half of the runs, and only while the last growth is complete.
        if not cluster.faulting or topic is None or chance.random() < 0.5:
            return
        if topic["spec"]["partitions"] != present or present >= _PARTITIONS_MAX:
            return
        # Later backups would have the new partitions.
        self._copies = copies
        count = present + chance.choice((1, 2))
        cluster.checks.note(f"a user wants {count} partitions")
        cluster.checks.grow("t", count)
        cluster.kube.edit(TOPIC, "t", {"partitions": count})
        cluster.clients.keys = [("t", number) for number in range(count)]

    def _go_down(self, kind: str, down_s: float) -> None:
        cluster = self._cluster
        chance = cluster.world.chance
        if not cluster.faulting:
            return
        machine = chance.choice(list(cluster.machines.values()))
        cluster.checks.note(f"broker {machine.node_id} goes down")
        # Determined before the broker goes down, while its replicas can still be compared.
        proven = cluster.checks.proven_without(machine)
        chance.choice((machine.kill, machine.power_cut, machine.shut_down))()
        cluster.world.after(down_s, self._strike, kind)
        cluster.world.after(down_s + _LED_AFTER_S, self._check_led, machine, proven)

    def _fall_behind(self) -> None:
        """Cut one broker off from the other two, so that it leaves the ISR."""
        cluster = self._cluster
        chance = cluster.world.chance
        if not cluster.faulting:
            return
        # One with all records, one that will lose its tail, one that is behind: no two can prove
        # what was committed.
        down, torn, behind = chance.sample(list(cluster.machines.values()), 3)
        cluster.checks.note(f"broker {behind.node_id} is cut off from other brokers")
        cluster.network.cut = {(behind.name, down.name), (behind.name, torn.name)}
        cluster.world.after(_BEHIND_S, self._lose_tail, down, torn)

    def _lose_tail(self, down: Any, torn: Any) -> None:
        """One broker goes down with all records, one loses its power, and the data is put back
        before the controller knows of it."""
        cluster = self._cluster
        chance = cluster.world.chance
        if not cluster.faulting:
            return
        cluster.checks.note(f"broker {down.node_id} goes down, {torn.node_id} loses its power")
        down.kill()
        torn.power_cut()
        self._strike(_TORN_DOWN)
        # The network is whole again: from here on only the broker that is down keeps the partitions
        # waiting.
        cluster.network.quiet()
        cluster.world.after(2 * chance.random(), torn.start)
        cluster.world.after(_LED_AFTER_S, down.start)

    def _check_led(self, machine: Any, proven: Any) -> None:
        """Check that the others lead what they can prove, then restart the broker."""
        cluster = self._cluster
        if cluster.faulting:
            cluster.checks.led_without(machine, proven)
            cluster.world.after(2 * cluster.world.chance.random(), machine.start)

    def _lose(self) -> None:
        """Delete some of the slices, or all."""
        cluster = self._cluster
        slices = cluster.kube.of_kind(PARTITION_SLICE)
        # Seven of ten, so that some partitions keep their rows.
        lost = [body for body in slices if cluster.world.chance.random() < 0.7]
        names = [body["metadata"]["name"] for body in lost]
        cluster.checks.note(f"slices lost: {', '.join(names) or 'none'}")
        for body in lost:
            cluster.kube._remove(body)

    def _restore_under(self) -> None:
        cluster = self._cluster
        old = cluster.world.chance.choice(self._copies)
        cluster.checks.note("the API's data is an old backup, under operators that run")
        # All kinds at once, as a restore of etcd does.
        cluster.kube.put_all_back(copy.deepcopy(old))
        for body in old:
            # The checks accept the old rows. What is written after them must be newer than
            # everything before.
            if body["kind"] == PARTITION_SLICE.kind:
                cluster.checks.put_back(body)
        for operator in cluster.operators.values():
            cluster.world.after(3 * cluster.world.chance.random(), operator.watch_anew)

    def _restore(self) -> None:
        cluster = self._cluster
        old = cluster.world.chance.choice(self._copies)
        cluster.checks.note("the API's data is an old backup")
        for body in old:
            # Operators are down, so no watch has to see the change.
            cluster.kube.put_back(copy.deepcopy(body))
            if body["kind"] == PARTITION_SLICE.kind:
                cluster.checks.put_back(body)
