"""Start of a term: no decision before brokers have reported the states they received.

The slices that a takeover finds may be older than what brokers received, and the first broker to
register may know least. While reports are missing, no partition's row is written for any request:
:class:`~tidemark_operator.slices.committer.Committer` holds such decisions back (ended sessions,
ISR changes, elections, new processes, removals). No snapshot is sent, and nothing is created or
moved. Leaders continue to lead meanwhile, with the stored ISR.

Every broker that counts as live is awaited until it reports or its session ends. A broker that
registers before their reports are complete is awaited until it reports. Other brokers may be alive
although the slices say otherwise. They have :data:`OTHERS_TURNS` to register. All but the last of
the turns may have passed before the term, while brokers looked for a controller here. The wait
ends at the latest a while after the last session could have. If no broker reaches this controller
at all, requests of people are served after :meth:`FirstReports.give_up`, until a broker arrives.
"""

import asyncio
from collections.abc import Collection, Iterable

#: Turns of a second each in which a live broker registers by itself. A broker that looks for the
#: controller pauses for 3 s, and loses 3 s at an address where no operator listens.
OTHERS_TURNS = 7
#: This many of them are in the term itself: some brokers may have had a controller until then.
LAST_TURNS = 2
#: Turns that a broker has at least to report what it received.
BOUND_TURNS = 15


class FirstReports:
    """Expected reports of one term, owned by the main loop. Complete until a broker is expected."""

    def __init__(self) -> None:
        #: Brokers whose reports are waited for, without a limit other than their sessions.
        """Start without an expected report; :meth:`expect` begins the wait."""
        self._awaited: set[int] = set()
        #: Brokers that may register; the wait for them is limited.
        self._possible: set[int] = set()
        self._reported: set[int] = set()  # Brokers that have reported.
        #: Seconds of this term, and those before it that count.
        self._turns = self._turns_before = 0
        self._reached_at: int | None = None  # Turn in which the first broker arrived.
        self._bound = BOUND_TURNS
        self._is_given_up = self._is_ended = False
        self._in = asyncio.Event()  # Set while nothing is waited for.
        self._in.set()

    def expect(
        self,
        live: Iterable[int],
        others: Iterable[int] = (),
        *,
        bound: int = BOUND_TURNS,
        looking: Collection[int] = (),
        turns_before: int = 0,
    ) -> None:
        """Start to wait for the brokers' reports of the states they received; one turn is a second.

        ``live``: node ids of brokers that are live according to the PartitionSlices. ``others``:
        other registered brokers, which may be alive as well. ``bound``: turns after the first
        report after which the wait ends. ``looking``: brokers that looked for a controller here
        before the term, and are therefore alive. ``turns_before``: turns that this process spent
        waiting for brokers before the term; they count towards :data:`OTHERS_TURNS`.
        """
        others = frozenset(others)
        # A broker that looked for a controller is alive, whatever the slices say.
        self._awaited.update(live, others.intersection(looking))
        self._possible.update(others)
        self._turns_before = min(turns_before, OTHERS_TURNS - LAST_TURNS)
        # A report to a former term does not count for this one.
        self._reported -= self._awaited
        self._bound = bound
        self._settle()

    # ------------------------------------------------------------ what happens

    def broker_arrived(self, node_id: int) -> None:
        """Note that a broker has arrived; its report is awaited, unless reports are complete."""
        self._reach()
        if not self.are_complete and node_id not in self._reported:
            self._awaited.add(node_id)
            self._settle()

    def broker_reported(self, node_id: int) -> None:
        """Note that a broker has reported, or has nothing to report."""
        self._reported.add(node_id)
        self._awaited.discard(node_id)
        self._possible.discard(node_id)
        self._reach()

    def sessions_ended(self, node_ids: Iterable[int]) -> None:
        """Note that sessions have ended: these brokers are dead or unreachable."""
        ended = self._awaited.intersection(node_ids)
        self._awaited -= ended
        self._possible |= ended
        self._settle()

    def keep_only(self, known: Collection[int]) -> None:
        """Drop the brokers that are not in ``known``."""
        self._awaited.intersection_update(known)
        self._possible.intersection_update(known)
        self._settle()

    def count_turn(self) -> None:
        """Count a turn, which is one second."""
        self._turns += 1
        self._settle()

    def give_up(self) -> None:
        """Serve people without brokers: no broker has reached this controller for too long."""
        self._is_given_up = True
        self._settle()

    def end(self) -> None:
        """End the wait: the term is over."""
        self._is_ended = True
        self._settle()

    def _reach(self) -> None:
        if self._reached_at is None:
            self._reached_at = self._turns
        self._settle()

    # ------------------------------------------------------------ what follows

    def _settle(self) -> None:
        # Silent brokers get their turns before the reports count as complete.
        may_come = bool(self._possible) and self._turns + self._turns_before < OTHERS_TURNS
        if (self._awaited or may_come) and not (self._is_ended or self._is_long_enough):
            self._in.clear()
        else:
            self._in.set()

    @property
    def _is_long_enough(self) -> bool:
        if self._reached_at is None:
            return self._is_given_up
        return self._turns - self._reached_at >= self._bound

    @property
    def are_complete(self) -> bool:
        """Whether no report is awaited."""
        return self._in.is_set()

    async def wait(self) -> None:
        """Wait until no report is awaited."""
        await self._in.wait()
