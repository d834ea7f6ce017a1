"""Clients that make one record of another, exactly once: results and the group's offset are
committed in one transaction."""

from tests.histories.clients import Instances, Restart, next_topic, partition_of
from tests.histories.consumers import GroupReading, Reading, Records
from tests.histories.levels import READ_COMMITTED
from tests.histories.producers import InstanceTransactions

UNFENCED_MAX = 200


class Transformer(Instances):
    """A result for each record that its group is given. A transaction never spans a rebalance:
    those fall into polls, and a poll comes before."""

    _left: InstanceTransactions | None = None

    def instance(self) -> None:
        client = self.client
        group = f"{client.group}-{self.run.seed}"
        transactions = InstanceTransactions(
            self.run, self.process, f"{self.run.seed}-{client.name}"
        )
        # This instance has fenced its predecessor, so a commit of the old transaction must fail.
        if self._left is not None:
            self._left.end_late()
            self._left = None
        reading = GroupReading(
            self.run, self.process, READ_COMMITTED, group, client.assignor, client.topics
        )
        try:
            while self.run.goes_on:
                records = reading.poll(client.batch)
                if records and not self._transform(reading, transactions, records):
                    return
        finally:
            reading.consumer.close()
            # A transaction that stays open is ended by the successor.
            if self._left is None:
                transactions.sender.leave()

    def _transform(
        self, reading: GroupReading, transactions: InstanceTransactions, records: Records
    ) -> bool:
        """False if this instance ends here, in the middle of it."""
        # The metadata is that of a generation: the id before and after shows that it belongs to the
        # member that received the records.
        member_id = reading.consumer.memberid()
        member = reading.consumer.consumer_group_metadata()
        if not member_id or reading.consumer.memberid() != member_id:
            raise Restart  # without membership another client may process the same records
        transactions.begin()
        self.make(transactions, reading.group, records)
        offsets = [partition_of(place, found[-1][0] + 1) for place, found in records.items()]
        is_done = False
        # Three ways to end: an abort that the coordinator demands, an instance that stops here with
        # its transaction open, and a chosen abort or commit.
        if not transactions.offsets(reading.group, offsets, member):
            transactions.abort()
        elif self.chance.random() < self.client.restarts:
            self._left = transactions
            return False
        elif self.chance.random() < self.client.aborts:
            transactions.abort()
        else:
            is_done = transactions.commit()
        # The input has to be processed again, from the first record of the batch.
        if not is_done:
            moved = [reading.seek(place, found[0][0]) for place, found in records.items()]
            if not all(moved):
                raise Restart
        return True

    def make(self, transactions: InstanceTransactions, group: str, records: Records) -> None:
        """The results, each of which says what it was made of."""
        for place, found in records.items():
            source = self.client.topics[0]
            for offset, value in found:
                topic, hops = next_topic(source, value)
                target = self.chance.choice(self.run.places((topic,)))
                transactions.send(target, self.new_value(hops), (group, place, offset))


class UnfencedTransformer(Transformer):
    """Does the work of a group without being a member, with a transactional id of its own: nothing
    keeps it apart from those who are. It does so for some records, once."""

    _made = 0

    def instance(self) -> None:
        group = f"{self.client.group}-{self.run.seed}"
        transactions = InstanceTransactions(
            self.run, self.process, f"{self.run.seed}-{self.client.name}"
        )
        reading = Reading(self.run, self.process, READ_COMMITTED, {})
        places = self.run.places(self.client.topics)
        for place in places:
            place.offset = 0
        reading.consumer.assign(places)
        reading.moved({f"{place.topic}-{place.partition}": 0 for place in places})
        while self.run.goes_on and self._made < UNFENCED_MAX:
            records = reading.poll(self.client.batch)
            if records:
                transactions.begin()
                self.make(transactions, group, records)
                transactions.commit()
                self._made += sum(map(len, records.values()))
        # It must not restart: another instance would have the same records again.
        self.run.stopping.wait()
        reading.consumer.close()
        transactions.sender.leave()
