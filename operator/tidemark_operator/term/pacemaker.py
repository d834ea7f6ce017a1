"""Periodic decisions of a term: once a second, or every few seconds."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from tidemark.error_text import error_text
from tidemark_operator.certificates.authority import BadCertificate
from tidemark_operator.certificates.certificate_stores import BundleConflict, BundleNameTaken
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import (
    draining,
    elections,
    placement,
    reassignment,
    replication_factor_changes,
    topic_deletion,
)
from tidemark_operator.controller.flapping_brokers import BrokerReturns
from tidemark_operator.kube.errors import Forbidden, KubeError
from tidemark_operator.kube.kinds import BROKER, USER
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.reconcile.first_reports import OTHERS_TURNS
from tidemark_operator.reconcile.replica_logs import LogQueries
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.resources.names import CLIENTS_RENEWAL_ANNOTATION, RENEWAL_ANNOTATION

logger = logging.getLogger(__name__)

TICK_S = 1.0
#: Placeholders that are filled in one turn.
FILL_LIMIT = 100
#: Turns between two collections of tombstones.
COLLECT_TURNS = 5
#: Per second: leaders of a broker with 1,000 partitions are back a minute after its replicas.
BALANCE_LIMIT = 20
CERTIFICATE_TURNS = 5
LEAF_TURNS = 600
#: Turns without a reachable broker after which the Cluster reports it: longer than a session.
UNREACHED_TURNS = 10


class Pacemaker:
    """Clock of one term."""

    def __init__(self, services: ReconcilerServices, log_queries: LogQueries) -> None:
        self._services = services
        self._log_queries = log_queries
        self._broker_returns = BrokerReturns()

    async def run(self) -> None:
        """Tick until the Lease runs out; then raise ``TermEnded``."""
        turns = 0
        while True:
            await asyncio.sleep(TICK_S)
            turns += 1
            if not self._services.leads():
                raise TermEnded("the Lease expired")
            await self._turn(turns)

    async def _turn(self, number: int) -> None:
        """Do the periodic work of one second; ``number`` counts the seconds of the term."""
        state = self._services.state
        # Topics whose brokers do not acknowledge in time show that in a condition.
        for topic_id in state.acknowledgements.tick(now_ms=wall_ms()):
            self._services.wake_topic(topic_id)
        # Report it if no broker has reached this controller for a while.
        self._notice_silence(number)
        # Brokers that restart repeatedly do not get their leaderships back.
        for event in self._broker_returns.observe(state.brokers.values(), now_s=number):
            self._services.events.emit(event)
        # Brokers of a rebuilt cluster had their time to report; the rebuilding stops waiting for
        # them.
        if number >= OTHERS_TURNS and not state.had_time_to_report:
            state.had_time_to_report = True
            if state.cluster.rebuilding is not None:
                self._services.wake_rebuilding()
        if self._are_first_reports_in(number):
            await self._decide_all(number)
            self._log_queries.ask()

    def _are_first_reports_in(self, number: int) -> bool:
        """Return whether the slices are known to hold what brokers received; no decision before
        that.
        """
        reports = self._services.first_reports
        reports.keep_only(self._services.state.brokers.keys())
        reports.count_turn()
        # No broker has reported at all: waiting longer would only keep the cluster without
        # decisions.
        if number >= UNREACHED_TURNS:
            reports.give_up()
        return reports.are_complete

    async def _decide_all(self, number: int) -> None:
        """Take the periodic decisions, each in a commit of its own if there is something to do.

        ``number`` counts the seconds of the term.
        """
        state, deletions = self._services.state, self._services.deletions
        # Availability first: leave failed storage, then place replicas, then move them.
        if any(state.storage_failures.all()):
            await self._decide(elections.leave_failed)
        if state.partitions.with_placeholders and state.live_brokers():
            await self._decide(lambda draft: placement.fill_placeholders(draft, limit=FILL_LIMIT))
        if any(broker.leaving for broker in state.brokers.values()):
            await self._decide(draining.step)
        if state.resizing:
            await self._decide(replication_factor_changes.step)
        if state.partitions.moving:
            await self._decide(reassignment.finish)
        # Every few seconds: tombstones, and memory of deleted topics.
        if number % COLLECT_TURNS == 0:
            if state.tombstones:
                await self._decide(lambda draft: topic_deletion.collect(draft, deletions))
            self._forget_gone()
        # Leaders return to their preferred replica slowly, and not to a broker that restarts
        # repeatedly.
        if state.partitions.unbalanced:
            flapping = self._broker_returns.flapping(now_s=number)
            await self._decide(
                lambda draft: elections.balance_leaders(
                    draft, limit=BALANCE_LIMIT, flapping=flapping
                )
            )
        # Rotation has steps of minutes and hours.
        if number % CERTIFICATE_TURNS == 0:
            await self._renew_certificates(all_leaves=number % LEAF_TURNS == 0)

    def _notice_silence(self, number: int) -> None:
        """Report a controller that no broker has reached; it fences no broker."""
        services, state = self._services, self._services.state
        # Without a single acknowledged state the fault is probably on this side of the network.
        unreached = (
            number >= UNREACHED_TURNS
            and not state.acknowledgements.has_any_snapshot
            and bool(state.live_brokers())
        )
        if unreached != state.unreached:
            state.unreached = unreached
            services.queue.add(services.cluster_key)
            for broker in state.brokers.values():
                services.queue.add(BROKER.key(broker.key))

    def _forget_gone(self) -> None:
        """Drop the memory of deleted topics."""
        services = self._services
        services.deletions.forget_gone(services.state)
        services.disablements.forget_gone(services.state)
        self._log_queries.forget_gone()

    async def _renew_certificates(self, *, all_leaves: bool) -> None:
        """Take the next step of the certificate authorities' rotation, if one is due.

        New certificates are issued by the reconcilers of Brokers and Users, which are queued here.
        ``all_leaves``: check the age of all brokers' certificates.
        """
        services, brokers = self._services, self._services.state.brokers.values()
        cluster = services.objects.get(services.cluster_key) or {"metadata": {}}
        annotations = cluster["metadata"].get("annotations") or {}
        try:
            live = [broker.node_id for broker in services.state.live_brokers()]
            renewal = annotations.get(RENEWAL_ANNOTATION, "")
            stepped = await services.certificates.rotate(live, renewal)
            # A new authority changes every leaf; otherwise leaves are checked for their age now and
            # then.
            for broker in brokers if stepped or all_leaves else ():
                services.queue.add(BROKER.key(broker.key))
            if await services.client_certificates.rotate(
                all_looked_at=services.state.users.complete,
                renewal=annotations.get(CLIENTS_RENEWAL_ANNOTATION, ""),
            ):
                for key in services.objects.keys(USER):
                    services.queue.add(key)
        # Errors that stay until a person acts go into a condition, others are retried silently.
        except (BadCertificate, Forbidden, PermissionError) as error:
            self._show_authority_problem(str(error))
        except (BundleConflict, KubeError, OSError) as error:  # the next turn tries again
            logger.warning("the certificate authority is unchanged: %s", error_text(error))
        except BundleNameTaken as error:
            self._show_authority_problem(str(error))
        else:
            self._show_authority_problem("")

    def _show_authority_problem(self, problem: str) -> None:
        """Show a problem with an authority in the Cluster's conditions."""
        services, state = self._services, self._services.state
        if problem == state.cluster.certificates_problem:
            return
        if problem:
            logger.warning("unusable certificate authority: %s", problem)
        state.cluster = dataclasses.replace(state.cluster, certificates_problem=problem)
        services.queue.add(services.cluster_key)

    async def _decide(self, decide: Callable[..., int]) -> None:
        await self._services.committer.try_decide(decide, "a step of the pacemaker")
