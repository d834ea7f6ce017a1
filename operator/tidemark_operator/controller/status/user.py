"""Status of a User: its principal, its Secret, and whether it can be used."""

import dataclasses

from tidemark.message_text import numbered
from tidemark.reasons import Reason
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.users import RULE_BYTES_MAX, USERS_MAX, UserInfo
from tidemark_operator.controller.status.conditions import (
    ConditionValue,
    StatusResult,
    render,
    summary,
)


@dataclasses.dataclass(frozen=True, slots=True)
class UserProblem:
    """Reason why a user cannot authenticate, or not as its spec says now."""

    reason: Reason
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserView:
    """Observations of a User; ``secret`` "": it has none; ``behind``: brokers yet to
    acknowledge it.
    """

    secret: str = ""
    problem: UserProblem | None = None
    is_left_out: bool = False
    behind: tuple[int, ...] = ()


def user_status(
    state: ControllerState, user: UserInfo, view: UserView, *, now_ms: int
) -> StatusResult:
    """Return the status of a User: name, Secret, conditions."""
    conditions = user_conditions(state, user, view)
    status: dict[str, object] = dict(user.status)
    status["observedGeneration"] = user.generation
    status["controllerEpoch"] = state.controller_epoch
    status["username"] = user.username
    status.pop("secret", None)
    if view.secret:
        status["secret"] = view.secret
    status["conditions"] = render(
        conditions, user.status, generation=user.generation, now_ms=now_ms
    )
    return StatusResult(status=status, sentence=f"user {user.key}: {conditions[0].message}")


def user_conditions(state: ControllerState, user: UserInfo, view: UserView) -> list[ConditionValue]:
    """Return Ready, Reconciling and Stalled of a User."""
    # A problem precedes the limit. While it lasts, the old credentials stay in force.
    if view.problem is not None:
        text = view.problem.message
        if view.secret:
            text += ". The previously accepted settings stay in force until then"
        return summary(ready=False, reason=view.problem.reason, message=text, stalled=True)
    if view.is_left_out:
        text = (
            f"a Cluster has at most {USERS_MAX} Users, with "
            f"{RULE_BYTES_MAX >> 20} MiB of ACLs and quotas, and older Users "
            "take precedence. Delete Users, or combine ACLs with a prefix"
        )
        return summary(ready=False, reason=Reason.LIMIT_REACHED, message=text, stalled=True)
    # Other brokers accept the user already, so this resolves itself.
    if view.behind:
        text = f"waiting for {numbered('broker', view.behind)} to acknowledge the user"
        return summary(
            ready=False, reason=Reason.ACKNOWLEDGEMENTS_PENDING, message=text, reconciling=True
        )
    text = f"brokers know User:{user.username}"
    if user.acls and not state.cluster.authorize:
        text += ". Its ACLs have no effect until the Cluster has spec.authorization"
    return summary(ready=True, reason=Reason.USABLE, message=text)
