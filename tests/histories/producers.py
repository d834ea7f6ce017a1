"""Clients that only write: one record after the other, plain or idempotent, or in transactions."""

import functools
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from tests.histories.clients import (
    TRANSACTION_MS,
    Instances,
    Restart,
    Run,
    error_of,
    place_of,
    repeated,
)
from tests.histories.events import RecordedOperation
from tests.histories.levels import IDEMPOTENT, PLAIN, TRANSACTIONAL
from tests.histories.librdkafka_logs import DEBUG, Hearing

#: A producer with this number of pending answers waits before it sends more.
UNANSWERED_MAX = 300
#: How long an instance waits for its last answers; what has none by then is of unknown outcome.
FLUSH_S = 30.0
#: What is to be aborted and cannot be sent is not waited for any longer.
ABORT_S = 5.0


class Sender:
    """A library's producer whose records are recorded.

    ``is_broken``: it has reported a fatal error. ``has_purged``: it has thrown records away.
    """

    def __init__(self, run: Run, process: str, level: str, settings: dict[str, Any]) -> None:
        self.is_broken = self.has_purged = False
        self.acknowledged: dict[str, int] = {}
        self._run = run
        self._process = process
        self._level = level
        # Only the log shows why this producer acknowledged a record that has no offset.
        if level == IDEMPOTENT:
            hearing = Hearing(run.recorder, run.said, process)
            settings |= {"debug": DEBUG, "log_level": 7, "logger": hearing}
        self.producer = Producer(run.settings(acks="all", **settings))

    def send(
        self,
        to: TopicPartition,
        value: str,
        *,
        txn: str = "",
        origin: Any = None,
        secret: bool = False,
    ) -> bool:
        """Send; return whether the library accepted the record. ``secret``: nothing is recorded."""
        place = place_of(to)
        operation = None
        if not secret:
            operation = self._run.recorder.invoke(
                self._process,
                "send",
                place=place,
                value=value,
                level=self._level,
                txn=txn,
                origin=origin,
            )
        delivered = functools.partial(self._delivered, operation, place)
        try:
            self.producer.produce(
                to.topic, value.encode(), partition=to.partition, on_delivery=delivered
            )
        except BufferError:
            # The library has not taken the record, so it cannot have been written.
            if operation is not None:
                operation.fail(error="the queue is full")
            return False
        except KafkaException as error:
            self.is_broken = True
            if operation is not None:
                operation.info(error=str(error_of(error)))
            return False
        return True

    def _delivered(
        self, operation: RecordedOperation | None, place: str, error: Any, message: Any
    ) -> None:
        # librdkafka acknowledges without an offset what a later batch proves to be written.
        if error is None:
            if message.offset() is not None:
                self.acknowledged[place] = message.offset()
            if operation is not None:
                operation.ok(offset=message.offset())
            return
        if error.fatal():
            self.is_broken = True
        if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self.has_purged = True
        if operation is not None:
            operation.info(error=str(error))

    def leave(self) -> None:
        """Nothing that is under way is waited for."""
        self.producer.purge()
        self.producer.flush(1)


class RecordProducer(Instances):
    """One record after the other, acks=all."""

    def instance(self) -> None:
        level = self.client.level
        settings = {"enable.idempotence": level == IDEMPOTENT}
        sender = Sender(self.run, self.process, level, settings)
        places = self.run.places(self.client.topics)
        sent = 0
        while self.run.goes_on and not sender.is_broken:
            # Without this limit a dead cluster would leave thousands of records of unknown outcome.
            if len(sender.producer) < UNANSWERED_MAX:
                for _ in range(self.client.batch):
                    self._send(sender, self.chance.choice(places), sent)
                    sent += 1
            sender.producer.poll(0)
            self.pause(self.client.pause_s)
            if self.chance.random() < self.client.restarts:
                break
        # A clean end waits for answers, so that few outcomes are unknown.
        sender.producer.flush(FLUSH_S)
        sender.leave()

    def _send(self, sender: Sender, to: TopicPartition, number: int) -> None:
        value = self.new_value()
        # A planted mistake in each twentieth record: claimed but not sent, or sent twice.
        if self.client.wrong and number % 20 == 10:
            if self.client.level == PLAIN:
                self._claim(to, value, sender)
                return
            sender.send(to, value, secret=True)
        sender.send(to, value)

    def _claim(self, to: TopicPartition, value: str, sender: Sender) -> None:
        """Acknowledged, it says, right behind what was acknowledged last."""
        operation = self.run.recorder.invoke(
            self.process,
            "send",
            place=place_of(to),
            value=value,
            level=PLAIN,
            txn="",
            origin=None,
        )
        operation.ok(offset=sender.acknowledged.get(place_of(to), -1) + 1)


class InstanceTransactions:
    """The transactions of one instance, one after the other: each begins, and ends in some way."""

    def __init__(self, run: Run, process: str, transactional_id: str) -> None:
        self._run = run
        self._process = process
        self._number = 0
        self.name = ""
        settings = {"transactional.id": transactional_id, "transaction.timeout.ms": TRANSACTION_MS}
        self.sender = Sender(run, process, TRANSACTIONAL, settings)
        repeated(self.sender.producer.init_transactions)

    def begin(self) -> None:
        """From now on :attr:`name` is the one that is open."""
        self._number += 1
        self.name = f"{self._process}/{self._number}"
        operation = self._run.recorder.invoke(self._process, "begin", txn=self.name)
        self.sender.producer.begin_transaction()
        operation.ok()

    def send(self, to: TopicPartition, value: str, origin: Any = None) -> None:
        """Send one record.

        Raises :class:`Restart` on failure, because the rest must not be committed.
        """
        if not self.sender.send(to, value, txn=self.name, origin=origin):
            raise Restart
        self.sender.producer.poll(0)

    def offsets(self, group: str, offsets: list[TopicPartition], member: Any) -> bool:
        """A group's offsets with it; False if only an abort is left."""
        operation = self._run.recorder.invoke(
            self._process,
            "offsets",
            txn=self.name,
            group=group,
            offsets={place_of(offset): offset.offset for offset in offsets},
        )
        producer = self.sender.producer
        try:
            repeated(producer.send_offsets_to_transaction, offsets, member)
        except KafkaException as error:
            operation.info(error=str(error_of(error)))
            # An abortable error ends this transaction only. Others end the instance.
            if error_of(error).txn_requires_abort():
                return False
            raise Restart from error
        operation.ok()
        return True

    def commit(self) -> bool:
        """Commit; return False if the transaction had to be aborted, and was.

        Raises :class:`Restart` if the outcome is unknown.
        """
        operation = self._run.recorder.invoke(self._process, "end", txn=self.name, commit=True)
        before: list[str] = []
        try:
            repeated(self.sender.producer.commit_transaction, before=before)
        except KafkaException as error:
            must_abort = error_of(error).txn_requires_abort()
            # A request that timed out before the refusal may have been applied by then.
            complete = operation.fail if must_abort and not before else operation.info
            complete(error=str(error_of(error)))
            if not must_abort:
                raise Restart from error
            self.abort()
            return False
        operation.ok()
        return True

    def abort(self) -> None:
        """Raises :class:`Restart` where that cannot be done. What was sent is waited for before:
        what librdkafka throws away at an abort may be in the log (an answer was lost, and it was
        to be sent again), and the next records get its sequence numbers in the same epoch
        (``rd_kafka_toppar_purge_queues``). Brokers, Apache Kafka's too, take those for duplicates:
        acknowledged, and not there. An error that requires an abort makes librdkafka throw records
        away before the abort."""
        if self.sender.producer.flush(ABORT_S) or self.sender.has_purged:
            raise Restart
        operation = self._run.recorder.invoke(self._process, "end", txn=self.name, commit=False)
        try:
            repeated(self.sender.producer.abort_transaction)
        except KafkaException as error:
            operation.info(error=str(error_of(error)))
            raise Restart from error
        operation.ok()

    def end_late(self) -> None:
        """End the transaction of an instance whose successor already exists."""
        try:
            self.commit()
        except Restart:
            self.sender.leave()


class TransactionWriter(Instances):
    """Transactions over several partitions. Now and then an instance leaves one open, and tries to
    commit it when the next one has begun: that must not be possible."""

    _left: InstanceTransactions | None = None

    def instance(self) -> None:
        transactions = InstanceTransactions(
            self.run, self.process, f"{self.run.seed}-{self.client.name}"
        )
        # This instance has fenced its predecessor, so a commit of the old transaction must fail.
        if self._left is not None:
            self._left.end_late()
            self._left = None
        places = self.run.places(self.client.topics)
        while self.run.goes_on:
            transactions.begin()
            for _ in range(self.chance.randint(1, self.client.batch)):
                transactions.send(self.chance.choice(places), self.new_value())
                self.pause(self.chance.random() * self.client.pause_s)
            # Leave the transaction open with its records already sent.
            if self.chance.random() < self.client.restarts:
                transactions.sender.producer.flush(1)
                self._left = transactions
                return
            if self.chance.random() < self.client.aborts:
                transactions.abort()
            else:
                transactions.commit()
        transactions.sender.leave()
