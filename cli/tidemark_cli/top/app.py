"""Terminal screen of ``tidemark top``: brokers, a page of topics, and the partitions of one topic.

Threads read from the API server and the brokers and queue the results. The screen only takes
results and draws, so no key waits for the network. A frame is drawn only after a change, and draws
one page, regardless of the number of topics.
"""

import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from tidemark_cli.inspection.screens import verdict_style
from tidemark_cli.top import pages
from tidemark_cli.top.broker_offsets import (
    BrokerOffsets,
    PartitionQuery,
    QueryOffsets,
    addresses,
    queries_for,
)
from tidemark_cli.top.object_index import BROKER, CLUSTER, TOPIC, ObjectIndex
from tidemark_cli.top.query import Query
from tidemark_cli.top.reader import LeaseBatch, ObjectBatch
from tidemark_cli.top.text import BAR_WIDTH, BAR_WIDTH_MIN, LEGEND, cell_text

#: Result of a thread.
Update = ObjectBatch | LeaseBatch | BrokerOffsets
_TICK_S = 0.1
#: Longest time that one tick spends on queued results; the rest waits for the next tick.
_APPLY_S = 0.05
#: Capacity of the queue of results; a thread blocks while it is full.
_RESULTS_MAX = 16
#: Findings on the screen at most.
FINDINGS_SHOWN = 4


class ObjectSource(Protocol):
    """Reader of one kind of objects, see :class:`reader.Reader`."""

    def read(self, wait_s: int) -> Iterable[ObjectBatch | LeaseBatch]: ...


class TopApp(App[None]):
    """Screen of ``tidemark top``.

    ``readers``: one for each kind of objects. ``query_offsets``: queries the brokers for partition
    offsets. ``interval_s``: length of a watch request and interval of the broker queries (seconds).
    ``query``: initial filter, order and page. ``listener``: name of the listener whose broker
    addresses are used.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "tidemark top"
    CSS = """
    #heading, #problems, #topics-note, #exports-note, #partitions-title, #legend, #findings {
        height: auto; padding: 0 1;
    }
    #problems { color: $error; max-height: 5; }
    #findings { max-height: 8; }
    #brokers { height: auto; max-height: 9; }
    #exports { height: auto; max-height: 8; }
    #topics { height: 2fr; }
    #partitions { height: 1fr; }
    #filter { display: none; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("slash", "open_filter", "Filter"),
        Binding("escape", "leave_filter", "All", show=False),
        Binding("s", "sort", "Sort"),
        Binding("w", "only_unwell", "Not well"),
        Binding("n", "turn(1)", "Next page"),
        Binding("p", "turn(-1)", "Page before"),
    ]

    def __init__(
        self,
        readers: Sequence[ObjectSource],
        query_offsets: QueryOffsets,
        *,
        interval_s: int,
        query: Query,
        listener: str,
    ) -> None:
        """Create the screen's state; the threads start when the screen is mounted."""
        super().__init__()
        #: The newest frame; None before the first.
        self.shown: pages.View | None = None
        self._readers = readers
        self._query_offsets = query_offsets
        self._interval_s = interval_s
        self._query = query
        self._listener = listener
        # State of the screen, which only the screen's thread changes.
        self._objects = ObjectIndex()
        self._broker_offsets = BrokerOffsets({})
        # Error text of the last read by kind of objects, "" if it succeeded.
        self._problems: dict[str, str] = {}
        # Topic at the cursor, whose partitions are shown; "" if none.
        self._selected = ""
        # Shared with the threads: the partitions to query with the brokers' addresses, the queue of
        # results, and events that end the threads and wake the one that queries brokers.
        self._broker_query: tuple[Sequence[PartitionQuery], Mapping[int, tuple[str, int]]]
        self._broker_query = (), {}
        self._results: queue.Queue[Update] = queue.Queue(_RESULTS_MAX)
        self._stopped, self._wake = threading.Event(), threading.Event()

    def compose(self) -> ComposeResult:
        """Return the widgets from top to bottom."""
        yield Static("reading", id="heading", markup=False)
        yield Static("", id="problems", markup=False)
        yield DataTable[Text](id="brokers", cursor_type="none")
        yield Input(placeholder="part of a name, or a pattern such as orders-*", id="filter")
        yield Static("", id="topics-note", markup=False)
        yield DataTable[Text](id="topics", cursor_type="row", zebra_stripes=True)
        yield DataTable[Text](id="exports", cursor_type="none")
        yield Static("", id="exports-note", markup=False)
        yield Static("", id="partitions-title", markup=False)
        yield DataTable[Text](id="partitions", cursor_type="none")
        yield Static(LEGEND, id="legend", markup=False)
        yield Static("", id="findings", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Set up the tables, and start one thread per kind of objects and one for the brokers.

        The threads are daemons, so that quitting does not wait for the network.
        """
        for columns, name in (
            (pages.BROKER_COLUMNS, "brokers"),
            (pages.TOPIC_COLUMNS, "topics"),
            (pages.EXPORT_COLUMNS, "exports"),
            (pages.PARTITION_COLUMNS, "partitions"),
        ):
            self._table(name).add_columns(*columns)
        self._table("topics").focus()
        for reader in self._readers:
            threading.Thread(target=self._follow, args=(reader,), daemon=True).start()
        threading.Thread(target=self._query_brokers, daemon=True).start()
        self.set_interval(_TICK_S, self._take_results)

    def on_unmount(self) -> None:
        """Let the threads end after their current request."""
        self._stopped.set()
        self._wake.set()

    # ------------------------------------------------------------ threads

    def _follow(self, reader: ObjectSource) -> None:
        while not self._stopped.is_set():
            failed = False
            for batch in reader.read(self._interval_s):
                failed = failed or bool(batch.problem)
                self._results.put(batch)
            if failed:
                self._stopped.wait(self._interval_s)

    def _query_brokers(self) -> None:
        while not self._stopped.is_set():
            queries, addresses_of = self._broker_query  # one assignment, so the pair is consistent
            if queries:
                self._results.put(self._query_offsets(queries, addresses_of))
            # Woken early when the cursor moves to another topic.
            self._wake.wait(self._interval_s)
            self._wake.clear()

    # ------------------------------------------------------------ the screen

    def _take_results(self) -> None:
        """Take queued results, and draw a frame if anything changed."""
        until = time.monotonic() + _APPLY_S
        is_changed = False
        while time.monotonic() < until:
            try:
                update = self._results.get_nowait()
            except queue.Empty:
                break
            is_changed = self._apply(update) or is_changed
        if is_changed:
            self._draw()

    def _apply(self, update: Update) -> bool:
        if isinstance(update, BrokerOffsets):
            self._broker_offsets = update
            return True
        version = self._objects.version
        update.apply_to(self._objects)
        before = self._problems.get(update.kind, "")
        self._problems[update.kind] = update.problem
        return self._objects.version != version or before != update.problem

    def _draw(self) -> None:
        """Compute a frame from the current state, and update the widgets whose content changed."""
        # An unreachable server is the same problem for each kind of objects.
        problems = list(dict.fromkeys(text for text in self._problems.values() if text))
        outdated = next(filter(None, map(self._problems.get, (CLUSTER, BROKER, TOPIC))), "")
        view = pages.view(
            self._objects,
            self._query,
            detailed=[self._selected] if self._selected else [],
            offsets=self._broker_offsets.offsets,
            problems=problems,
            unanswered=self._broker_offsets.problems,
            outdated=outdated,
        )
        before, self.shown = self.shown, view
        heading = Text(view.verdict, verdict_style(view.verdict))
        heading.append("".join(f"\n{line}" for line in view.heading), "not bold")
        self._static("heading", heading)
        self._static("findings", self._findings(view))
        self.query_one("#findings", Static).display = bool(view.findings)
        self._static("problems", "\n".join(view.problems))
        self._static("topics-note", "\n".join(view.topics.notes))
        # Tables are refilled only if they differ: a refill costs time and moves the scroll
        # position.
        if before is None or before.brokers != view.brokers:
            self._fill("brokers", view.brokers)
        if before is None or before.topics != view.topics:
            self._fill("topics", view.topics)
        if before is None or before.exports != view.exports:
            self._fill("exports", view.exports)
            self._static("exports-note", "\n".join(view.exports.notes))
            # Without Exports the lines are left to the topics.
            for name in ("exports", "exports-note"):
                self.query_one(f"#{name}").display = bool(view.exports.rows)
        if before is None or before.partitions != view.partitions:
            self._draw_partitions(view)
        # The visible partitions may have changed, and only these are queried.
        self._update_broker_query()

    def _findings(self, view: pages.View) -> Text:
        """Return the first findings, a line each, those of the selected topic before the others."""
        ordered = sorted(
            view.findings, key=lambda item: (item.kind, item.name) != (TOPIC, self._selected)
        )
        text = Text()
        for item in ordered[:FINDINGS_SHOWN]:
            text.append(" ".join(filter(None, (item.reference, item.reason))), "bold")
            text.append(f": {item.message}\n")
        hidden = len(view.findings) + view.more_findings - FINDINGS_SHOWN
        if hidden > 0:
            text.append(f"{hidden:,} more: tidemark status")
        text.rstrip()
        return text

    def _draw_partitions(self, view: pages.View) -> None:
        if not view.partitions:
            self._static("partitions-title", "")
            self._table("partitions").clear()
            return
        (table,) = view.partitions
        self._static("partitions-title", "  ".join((table.title, *table.notes)))
        self._fill("partitions", table)

    def _fill(self, name: str, shown: pages.ViewTable) -> None:
        """Refill a table; the cursor stays on its topic."""
        table = self._table(name)
        # Columns of troubles appear with the first topic that has one.
        is_changed = [str(column.label) for column in table.ordered_columns] != [*shown.columns]
        table.clear(columns=is_changed)
        if is_changed:
            table.add_columns(*shown.columns)
        bar_width = self._bar_width(shown)
        for number, row in enumerate(shown.rows):
            cells = [cell_text(cell, bar_width) for cell in row]
            for cell, column in zip(cells, shown.columns, strict=True):
                cell.justify = "right" if column in pages.NUMERIC else "left"
            table.add_row(*cells, key=shown.keys[number] if shown.keys else None)
        if self._selected in shown.keys:
            table.move_cursor(row=shown.keys.index(self._selected))

    def _bar_width(self, shown: pages.ViewTable) -> int:
        """Return the width that the other columns leave for the bars."""
        others = 0
        for column, name in enumerate(shown.columns[:-1]):
            texts = [name, *(str(row[column]) for row in shown.rows)]
            others += max(map(len, texts)) + 2
        # The bar's own cell has a space on both sides, and the table may have a scrollbar.
        return max(BAR_WIDTH_MIN, min(BAR_WIDTH, self.size.width - others - 4))

    def on_resize(self) -> None:
        """Fit the bars to the new width."""
        if self.shown is not None:
            self._draw_partitions(self.shown)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the partitions of the topic at the cursor, and query their offsets at once."""
        if event.data_table.id != "topics" or not event.row_key or not event.row_key.value:
            return
        # Refilling a table highlights rows too; an empty table must not clear the selection.
        if event.row_key.value != self._selected and event.data_table.row_count > 0:
            self._selected = event.row_key.value
            self._draw()
            self._wake.set()

    def _update_broker_query(self) -> None:
        """Set the partitions of the next broker query."""
        topic = self._objects.topic(self._selected) if self._selected else None
        brokers = self._objects.of_kind(BROKER)
        self._broker_query = (
            queries_for([topic] if topic else []),
            addresses(brokers, self._listener),
        )

    # ------------------------------------------------------------ keys

    def action_sort(self) -> None:
        """Sort by the next key."""
        self._set_query(self._query.sorted_otherwise())

    def action_only_unwell(self) -> None:
        """Switch between all topics and those that need attention."""
        self._set_query(replace(self._query, only_unwell=not self._query.only_unwell, page=0))

    def action_turn(self, pages_on: int) -> None:
        """Turn pages; the page number is limited to the existing pages."""
        self._set_query(replace(self._query, page=max(0, self._query.page + pages_on)))

    def action_open_filter(self) -> None:
        """Open the filter field; Enter closes it."""
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    def action_leave_filter(self) -> None:
        """Clear and close the filter."""
        field = self.query_one("#filter", Input)
        field.value = ""
        self._close_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the filter with each letter."""
        self._set_query(replace(self._query, pattern=event.value, page=0))

    def on_input_submitted(self) -> None:
        """Keep the filter and return the keyboard to the list."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("open")
        self._table("topics").focus()

    def _set_query(self, query: Query) -> None:
        self._query = query
        self._draw()
        if self.shown is not None:  # a page number after the last shows the last
            self._query = replace(query, page=min(query.page, self.shown.pages - 1))

    # ------------------------------------------------------------ widgets

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)

    def _static(self, name: str, text: str | Text) -> None:
        self.query_one(f"#{name}", Static).update(text)
