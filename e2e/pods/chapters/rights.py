"""The operator's account has no superfluous right, and a missing right is reported to users.

Each rule of its Role is withdrawn while the operator runs, an action that needs it is started
(:mod:`e2e.pods.rights_cases`), and the refusal is reported. Then the rule is put back, and the
pending work completes without intervention. A rule that no case withdraws fails the chapter, and
also tests/integration/chart/test_rendering.py. tests/integration/operator/test_rights.py guarantees
that each verb of each rule is used.
"""

import functools
import json
import time

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.chapters.install import TOPIC
from e2e.pods.commands import CommandFailed
from e2e.pods.objects import NAMESPACE, STORE
from e2e.pods.progress import Failed
from e2e.pods.rights_cases import CASES, USER, Case, Rule
from e2e.pods.stage import OPERATOR, Stage

TOPICS = "topics.tidemark.dev"
MINE = "rights-"
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def _role(stage: Stage) -> list[Rule]:
    rules = stage.kubernetes.get(NAMESPACE, "role", OPERATOR)["rules"]
    assert isinstance(rules, list)
    return rules


def _set_role(stage: Stage, rules: list[Rule]) -> None:
    change = json.dumps({"rules": rules})
    stage.kubernetes.run(
        "--namespace", NAMESPACE, "patch", "role", OPERATOR, "--type=merge", "-p", change
    )


def _one_by_one(stage: Stage) -> None:
    rules = _role(stage)
    for rule in rules:
        # The first case that needs this rule withdraws it.
        cases = [case for case in CASES if case.is_of(rule)]
        if not cases:
            raise Failed(f"no case withdraws {rule}: write one")
        _withdrawn(stage, rules, rule, cases[0])


def _withdrawn(stage: Stage, rules: list[Rule], rule: Rule, case: Case) -> None:
    what = f"{', '.join(rule['verbs'])} {', '.join(rule['resources'])}"
    begun_s = time.monotonic()
    # The rule is missing from here until the refusal is reported.
    _set_role(stage, [item for item in rules if item is not rule])
    case.disturb(stage)
    stage.wait(f"without {what}", lambda: case.noticed(stage, begun_s))
    noticed_s = time.monotonic()
    _set_role(stage, rules)
    stage.wait(f"with {what} again", lambda: case.healed(stage, noticed_s))
    stage.recovered()
    stage.progress.say(
        f"{what}: noticed after {noticed_s - begun_s:.0f} s, "
        f"repaired after {time.monotonic() - noticed_s:.0f} s"
    )


def _nowhere_else(stage: Stage) -> None:
    """In other namespaces it may ask what it may, as everybody may."""
    account = f"--as=system:serviceaccount:{NAMESPACE}:{OPERATOR}"
    for where in ("default", STORE):
        asked = ("--namespace", where, "auth", "can-i", "--list", "--no-headers", account)
        # What is no resource leaves the first column empty.
        lines = [line for line in stage.kubernetes.run(*asked).splitlines() if line[:1].strip()]
        # Definitions are cluster-wide: the operator reads its own, to notice that one is deleted.
        more = [
            line
            for line in lines
            if not line.startswith("selfsubject")
            and not (line.startswith(DEFINITIONS) and line.endswith("[get]"))
        ]
        if more or not lines:
            raise Failed(f"in namespace {where} the operator's account may: {more}")


# ------------------------------------------------------------ users

#: Kubernetes' roles with ours added to them by its controller, and ours by themselves.
BOUND = {
    "viewer": ("view",),
    "editor": ("edit",),
    "tidemark-viewer": ("tidemark-view",),
    "tidemark-editor": ("tidemark-view", "tidemark-edit"),
    "tidemark-owner": ("tidemark-view", "tidemark-edit", "tidemark-admin"),
}
READ = ("get", "topics.tidemark.dev", TOPIC)
#: A dry run: the request changes nothing.
CHANGE = ("patch", "topics.tidemark.dev", TOPIC, "--type=merge", "-p", "{}")
OWN = ("patch", "clusters.tidemark.dev", "tidemark", "--type=merge", "-p", "{}")
STATUS = (*CHANGE, "--subresource=status")
SLICES = ("get", "partitionslices.tidemark.dev")
SECRETS = ("get", "secrets")


def _users(stage: Stage) -> None:
    """Kubernetes' own ``edit`` reads Secrets, which is not ours to change."""
    bindings = [objects.bound(user, role) for user, roles in BOUND.items() for role in roles]
    stage.kubernetes.apply(*bindings)
    for user in BOUND:
        stage.wait(f"{user} reads", functools.partial(_reads_not, stage, user))
        owns = user == "tidemark-owner"
        edits = owns or "edit" in user
        # Editors change Topics, owners also the Cluster. Status and slices belong to the operator
        # alone.
        expected = {
            CHANGE: edits,
            OWN: owns,
            STATUS: False,
            SLICES: False,
            SECRETS: user == "editor",
        }
        for asked, allowed in expected.items():
            if _may(stage, user, asked) != allowed:
                raise Failed(f"{user} {'cannot' if allowed else 'can'} {' '.join(asked)}")
    names = [body["metadata"]["name"] for body in bindings]
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "rolebinding", *names)


def _reads_not(stage: Stage, user: str) -> str:
    return "" if _may(stage, user, READ) else "it cannot"


def _may(stage: Stage, user: str, asked: tuple[str, ...]) -> bool:
    """Return whether a user may make a request. Errors other than a refusal count as allowed."""
    try:
        stage.kubernetes.run("--namespace", NAMESPACE, f"--as={user}", *asked)
    except CommandFailed as error:
        if "(Forbidden)" not in str(error):
            raise
        return False
    return True


def _swept(stage: Stage) -> None:
    """The topics of this chapter go, with their finalizers: that takes rights, too."""
    names = [name for name in stage.kubernetes.names(NAMESPACE, TOPICS) if name.startswith(MINE)]
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", TOPICS, *names)
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "users.tidemark.dev", USER)
    for name in names:
        stage.written.pop(name, None)
    stage.recovered()
    stage.consume_all()


CHAPTER = Chapter(
    "rights",
    "each rule of the operator's Role is needed, and users have fewer",
    (
        Step(
            "each rule that is withdrawn is reported, and work resumes once it is put back",
            _one_by_one,
        ),
        Step("in other namespaces the account may do nothing", _nowhere_else),
        Step("viewers and editors cannot change a status or a slice", _users),
        Step("all is as it was", _swept),
    ),
    takes_s=97,
)
