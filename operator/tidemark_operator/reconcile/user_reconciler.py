"""Reconciler of Users: its Secret, then the brokers, then its status."""

import logging

from tidemark.wire.users import ScramCredential
from tidemark_operator.certificates.certificate_stores import BundleNameTaken
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.controller.status import user_status
from tidemark_operator.controller.status.conditions import READY, TRUE, find
from tidemark_operator.controller.status.user import UserView, user_conditions
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import USER, Json, Key
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.objects.users import user_info
from tidemark_operator.reconcile.object_conditions import report_foreign
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.reconcile.user_secrets import SECRET_REFUSED, Proof, UserSecrets
from tidemark_operator.resources.metadata import InvalidResource

logger = logging.getLogger(__name__)

#: Secrets are not watched. A referenced password is read again within the first interval. An own
#: Secret that was removed, or a certificate that is due, is renewed within the second.
PASSWORD_CHECK_S = 60.0
SECRET_CHECK_S = 600.0
PROBLEM_RETRY_S = 10.0
CONTENDED_RETRY_S = 0.5
#: Time for brokers to acknowledge before the status shows the delay: of a usable User, of others.
PATIENCE_S = 60.0
FIRST_PATIENCE_S = 2.0


class UserReconciler:
    """Reconciles the Users of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._secrets = UserSecrets(services)
        #: Users whose first wait for brokers is over.
        self._waited: set[Key] = set()

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one User: maintain its Secret, send its credentials, write its status.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services = self._services
        body = services.objects.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._waited.discard(key)
            # Repeated here, because a late event may have registered the certificate again.
            self._services.client_certificates.forget(key.name)
            if body is None:
                try:
                    await self._secrets.remove(key.name, only_if_orphaned=True)
                except BundleNameTaken:
                    return CONTENDED_RETRY_S
            return None  # the reflector has already notified the brokers
        if cluster_of(body) != services.cluster_key.name:
            return await report_foreign(services, USER, key, body)
        # An invalid User loses its access, whatever its former spec allowed.
        try:
            user = user_info(body)
        except InvalidResource:
            services.drop_user(key)
            raise
        try:
            proof = await self._provide(user, key, body)
        except BundleNameTaken as error:
            logger.info("%s: %s", key, error)
            return CONTENDED_RETRY_S
        # The User may have been changed while its Secret was written.
        if not self._is_still(key, user):
            return 0.0
        # Publish new credentials. With a problem, the credentials that brokers have remain valid.
        if proof.problem is None or proof.scram:
            self._publish(user, proof.scram)
        elif self._services.state.users.get(user.key) or proof.problem.reason != SECRET_REFUSED:
            self._publish(user, self._former(user))
        # Otherwise no accepted credential is known yet: brokers keep what they have.
        return await self._write(key, user, proof)

    async def _provide(self, user: UserInfo, key: Key, body: Json) -> Proof:
        try:
            return await self._secrets.provide(user, key.name, body)
        except (KubeError, BundleNameTaken):
            raise
        except Exception:  # a fault in one User must not keep all others from brokers
            self._publish(user, self._former(user))
            raise

    def _is_still(self, key: Key, user: UserInfo) -> bool:
        """Return whether the object is the same, neither deleted nor changed."""
        body = self._services.objects.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return False
        meta = body["metadata"]
        return (str(meta["uid"]), int(meta["generation"])) == (user.uid, user.generation)

    def _publish(self, user: UserInfo, scram: tuple[ScramCredential, ...]) -> None:
        """Send a user to the brokers; one with a problem keeps its rights and former
        credentials.
        """
        users = self._services.state.users
        was_complete = users.complete
        if users.put(user, user.state(scram)) or users.complete != was_complete:
            self._services.engine.publish_users()

    def _former(self, user: UserInfo) -> tuple[ScramCredential, ...]:
        """Return the credentials that brokers have, of the mechanism that the user should have."""
        published = self._services.state.users.get(user.key)
        credentials = () if published is None else published.scram
        return tuple(known for known in credentials if known.mechanism == user.mechanism)

    # ------------------------------------------------------------ status

    async def _write(self, key: Key, user: UserInfo, proof: Proof) -> float | None:
        """Write a User's status; return the seconds until the next check.

        The status is Ready once all connected brokers have acknowledged the User.
        """
        services, now_ms = self._services, wall_ms()
        users = services.state.users
        # Brokers usually acknowledge within moments: the status waits for them, once.
        behind = services.engine.users_behind(users.changed_at(user.key))
        is_well = proof.problem is None
        if behind and is_well and (pause_s := self._patience_s(key, user)):
            return pause_s
        if not behind:
            self._waited.discard(key)
        view = UserView(
            secret=proof.secret,
            problem=proof.problem,
            is_left_out=users.is_left_out(user.key),
            behind=tuple(behind),
        )
        result = user_status(services.state, user, view, now_ms=now_ms)
        former = find(user.status, READY) or {}
        if await services.statuses.write_if_due(
            USER, key, user.status, result.status, now_ms=now_ms
        ):
            self._report(user, view, str(former.get("reason", "")))
        # The acknowledgement of the last broker queues the User again.
        if behind:
            users.wait(user.key)
        if proof.problem or view.is_left_out or behind:
            return PROBLEM_RETRY_S
        return SECRET_CHECK_S if user.password_ref is None else PASSWORD_CHECK_S

    def _patience_s(self, key: Key, user: UserInfo) -> float:
        """Return the seconds until a missing acknowledgement is reported, 0 after the first
        wait.
        """
        if key in self._waited:
            return 0.0
        self._waited.add(key)
        self._services.state.users.wait(user.key)
        ready = find(user.status, READY)
        return PATIENCE_S if ready and ready.get("status") == TRUE else FIRST_PATIENCE_S

    def _report(self, user: UserInfo, view: UserView, former_reason: str) -> None:
        """Emit an Event when the reason of Ready changes."""
        ready = user_conditions(self._services.state, user, view)[0]
        if ready.reason != former_reason:
            event = normal if ready.status == TRUE else warning
            self._services.events.emit(event(USER.kind, user.key, ready.reason, ready.message))
