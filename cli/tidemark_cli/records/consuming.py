"""Run of ``tidemark consume``: records from the brokers to standard output."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.consumer import RecordReader
from tidemark.kafka_client.groups import Groups
from tidemark.kafka_client.membership import GroupMember
from tidemark.kafka_client.topic_leaders import TopicLeaders
from tidemark.kafka_client.values import LATEST
from tidemark.message_text import count
from tidemark.records.decode import DecodedRecord
from tidemark_cli.records.positions import ConsumeOptions, OffsetChoice, resolve
from tidemark_cli.records.text import partitions_text, rate_text
from tidemark_cli.sizes import size_text

_COMMIT_S = 5.0
#: Time for which a member without partitions waits for some.
_UNASSIGNED_S = 10.0
#: Bytes that are formatted before they are written.
_WRITE_BYTES = 64 * 1024

Show = Callable[[int, DecodedRecord], bytes]


class Consuming:
    """One run; ``show`` formats a record, None to count records only."""

    def __init__(
        self,
        topic: str,
        options: ConsumeOptions,
        choice: OffsetChoice,
        show: Show | None,
        note: Callable[[str], None],
    ) -> None:
        self._topic, self._options, self._choice = topic, options, choice
        self._committed = not options.read_uncommitted
        self._show = show
        self._note = note
        self._records = 0
        self._bytes = 0
        self._next: dict[int, int] = {}
        self._began = time.monotonic()

    @property
    def has_begun(self) -> bool:
        """Return whether a record was read."""
        return self._records > 0

    def progress(self) -> str:
        """Return one line for a run that continues."""
        seconds = time.monotonic() - self._began
        return f"{count(self._records, 'record')} so far, {rate_text(self._records, seconds)}"

    def summary(self) -> str:
        """Return one line for a run that has ended."""
        seconds = time.monotonic() - self._began
        line = f"read {count(self._records, 'record')} ({size_text(self._bytes)})"
        line += f" of {self._topic} in {rate_text(self._records, seconds)}"
        following = partitions_text({p: str(offset) for p, offset in self._next.items()})
        return f"{line}; next offset by partition: {following}" if following else line

    async def run(self, client: KafkaClient, stop: asyncio.Event) -> None:
        """Read until the end, the count or ``stop``.

        Raises ``KafkaError``, and BrokenPipeError if standard output is closed.
        """
        partitions = self._options.partitions or []
        # A topic or partition that does not exist is an error at once.
        leaders = TopicLeaders(client, self._topic)
        await leaders.refresh()
        leaders.check(partitions)
        reader = RecordReader(leaders, committed=self._committed)
        self._began = time.monotonic()
        try:
            if self._options.group:
                await self._read_as_member(client, leaders, reader, stop)
            else:
                # Without a group the partitions never change.
                await self._start(leaders, reader, partitions or [*leaders.of], {})
                while not stop.is_set() and not self._has_all() and reader.unfinished:
                    await self._read(reader)
        finally:
            await reader.close()

    async def _start(
        self,
        leaders: TopicLeaders,
        reader: RecordReader,
        partitions: Sequence[int],
        known: dict[int, int],
    ) -> None:
        """Assign partitions to the reader. ``known``: the positions of some of them."""
        unknown = [partition for partition in partitions if partition not in known]
        positions = await resolve(self._choice, leaders, unknown, committed=self._committed)
        # The end of this run is the present end: writers may be faster than this reader.
        ends = (
            {}
            if self._options.follow
            else await leaders.offsets(dict.fromkeys(partitions, LATEST), committed=self._committed)
        )
        reader.assign({**positions, **known}, ends)
        self._next.update(reader.positions)

    def _has_all(self) -> bool:
        return self._records == self._options.count

    async def _read(self, reader: RecordReader) -> None:
        """Write the records of one answer."""
        for fetched in await reader.poll():
            written = bytearray()
            # The count may end an answer in the middle.
            for record in () if self._has_all() else reader.records(fetched):
                self._records += 1
                self._bytes += len(record.key or b"") + len(record.value or b"")
                if self._show is not None:
                    written += self._show(fetched.partition, record)
                if len(written) > _WRITE_BYTES:
                    _write(written)
                    written.clear()
                if self._has_all():
                    break
            _write(written)
        for partition, offset in reader.skipped.items():
            self._note(
                f"partition {partition}: records were deleted meanwhile; continued at offset "
                f"{offset}"
            )
        reader.skipped.clear()
        self._next.update(reader.positions)

    # ------------------------------------------------------------ groups

    async def _read_as_member(
        self, client: KafkaClient, leaders: TopicLeaders, reader: RecordReader, stop: asyncio.Event
    ) -> None:
        """Read the partitions that the group's coordinator assigns, and commit their offsets."""
        groups = Groups(client)
        member = GroupMember(groups, self._options.group, leaders)
        await member.join()
        committed_at = time.monotonic()
        unassigned_since = time.monotonic()
        try:
            while not stop.is_set() and not self._has_all():
                member.check()
                await self._follow_assignment(groups, member, leaders, reader)
                now = time.monotonic()
                if reader.positions:
                    unassigned_since = now
                    # All that is assigned now is read to its end.
                    if not reader.unfinished and not self._options.follow:
                        break
                elif not self._options.follow and now - unassigned_since > _UNASSIGNED_S:
                    group = self._options.group
                    self._note(f"group {group} has assigned no partition to this member")
                    break
                await self._read(reader)
                if now - committed_at > _COMMIT_S:
                    await self._commit(member, reader.positions)
                    committed_at = now
        finally:
            # Everything up to the positions is written, so these are the offsets to commit.
            await self._commit(member, reader.positions)
            await member.leave()

    async def _follow_assignment(
        self, groups: Groups, member: GroupMember, leaders: TopicLeaders, reader: RecordReader
    ) -> None:
        """Give up revoked partitions after a commit, and start the new ones where it ended."""
        # The coordinator has not decided yet.
        if member.assigned is None:
            return
        # Committed before they are given up, so that the next member continues there.
        revoked = reader.positions.keys() - member.assigned
        if revoked:
            await self._commit(member, {p: reader.positions[p] for p in revoked})
            reader.unassign(revoked)
        # Partitions that no member has read yet start at the chosen offset.
        added = member.assigned - reader.positions.keys()
        if added:
            committed = await groups.committed(self._options.group)
            known = {
                partition: committed[leaders.topic, partition]
                for partition in added
                if (leaders.topic, partition) in committed
            }
            await self._start(leaders, reader, list(added), known)
        # Only now may the coordinator assign revoked partitions to another member.
        member.own(reader.positions)

    async def _commit(self, member: GroupMember, positions: dict[int, int]) -> None:
        for partition, failure in (await member.commit(positions)).items():
            self._note(f"partition {partition}: its offset was not committed: {failure}")


def _write(text: bytearray) -> None:
    """Write to standard output at once. Raises BrokenPipeError."""
    if text:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
