"""The first moment of a term: until brokers have said what they were told, nothing is decided.

Slices that a take-over finds may be older than what brokers were told, and the first broker that
comes may be the one that knows least. So while reports are missing no partition's row is written,
whoever asks for it (:class:`~tidemark_operator.slices.committer.Committer` holds such decisions
back: sessions that end, ISR changes, elections, new processes, removals), no snapshot is sent, and
nothing is made or moved. Leaders go on leading meanwhile, with the ISR that is stored.

Waited for is every broker that counts as live, until it has reported or its session is over; and
whoever else comes before these are in, until it has reported. Which of the others are alive though
the slices say that they are not, nobody can know: they have :data:`OTHERS_TURNS` to come, all but
the last of which may have been before the term, while brokers looked for a controller here. All of
it ends a while after the last session could have. Where nobody reaches this controller at all, what
people ask of it goes on after :meth:`FirstReports.give_up`, until somebody does.
"""

import asyncio
from collections.abc import Collection, Iterable

#: Turns of a second each in which whoever is alive comes by itself: a broker that looks for the
#: controller pauses for 3 s, and loses 3 s at an address at which nobody is.
OTHERS_TURNS = 7
#: So many of them are of the term, whatever was before: some may have had a controller until then.
LAST_TURNS = 2
#: Whoever comes has at least so many turns to say what it was told.
BOUND_TURNS = 15


class FirstReports:
    """Of one term; belongs to the main loop. Open until somebody is expected."""

    def __init__(self) -> None:
        self._awaited: set[int] = set()
        #: They may come; nobody waits for them for longer than for others.
        self._possible: set[int] = set()
        self._reported: set[int] = set()
        self._turns = self._turns_before = 0
        self._reached_at: int | None = None
        self._bound = BOUND_TURNS
        self._is_given_up = self._is_ended = False
        self._in = asyncio.Event()
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
        """The term begins. ``live`` by the slices; ``others``: who may be alive all the same;
        ``bound``: turns after the first of them has come that are enough for all. ``looking``: who
        has looked for a controller here before the term, for so many turns in all: of the others
        these are known to be alive."""
        others = frozenset(others)
        self._awaited.update(live, others.intersection(looking))
        self._possible.update(others)
        self._turns_before = min(turns_before, OTHERS_TURNS - LAST_TURNS)
        self._reported -= self._awaited
        self._bound = bound
        self._settle()

    # ------------------------------------------------------------ what happens

    def knocked(self, node_id: int) -> None:
        """A broker has come: what it was told is waited for, if anything is."""
        self._reach()
        if not self.are_in and node_id not in self._reported:
            self._awaited.add(node_id)
            self._settle()

    def presented(self, node_id: int) -> None:
        """A broker has said what it was told, or cannot."""
        self._reported.add(node_id)
        self._awaited.discard(node_id)
        self._possible.discard(node_id)
        self._reach()

    def over(self, node_ids: Iterable[int]) -> None:
        """The sessions of these have ended: they are dead, or not to be reached."""
        ended = self._awaited.intersection(node_ids)
        self._awaited -= ended
        self._possible |= ended
        self._settle()

    def look_again(self, known: Collection[int]) -> None:
        """Brokers may have been removed."""
        self._awaited.intersection_update(known)
        self._possible.intersection_update(known)
        self._settle()

    def turn(self) -> None:
        """A second has passed."""
        self._turns += 1
        self._settle()

    def give_up(self) -> None:
        """Nobody has reached this controller for so long that people are served without."""
        self._is_given_up = True
        self._settle()

    def end(self) -> None:
        """The term is over: nobody waits any more."""
        self._is_ended = True
        self._settle()

    def _reach(self) -> None:
        if self._reached_at is None:
            self._reached_at = self._turns
        self._settle()

    # ------------------------------------------------------------ what follows

    def _settle(self) -> None:
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
    def are_in(self) -> bool:
        """Whether nobody is waited for."""
        return self._in.is_set()

    async def wait(self) -> None:
        """Until nobody is waited for."""
        await self._in.wait()
