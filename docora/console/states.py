"""Every state that a watch, a repository and an app can be in: when, how it is shown, and the cure.

The first condition that holds is the state, so each list begins with what matters most. Lists, pages, filters and the
overview read the states from here. docs/admin.md has them as tables, and tests/console/test_states.py compares the two.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import Case, CharField, Count, Exists, Model, OuterRef, Q, QuerySet, Value, When
from django.utils import timezone

from repositories import watch_state
from repositories.errors import EndpointDisabled
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.models import Parked

Tone = Literal["good", "bad", "busy", "warn", "calm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """`condition` is called at each question: it may depend on the settings and on the time."""

    name: str
    label: str
    tone: Tone
    condition: Callable[[], Q]
    meaning: str
    cure: str


@dataclass(frozen=True, slots=True)
class States:
    """The states of the rows of one model; each row has exactly one."""

    model: type[Model]
    all: Sequence[State]

    def named(self, name: str) -> State:
        return next(state for state in self.all if state.name == name)

    def annotated(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Each row gets the name of its state as `state_name`."""
        *others, last = self.all
        cases = [When(state.condition(), then=Value(state.name)) for state in others]
        annotated: QuerySet[Any] = rows.annotate(
            state_name=Case(*cases, default=Value(last.name), output_field=CharField())
        )
        return annotated

    def attach(self, rows: Iterable[Any]) -> None:
        """Give each row its `shown_state`, with one query for all of them."""
        rows = list(rows)
        found = self.annotated(self.model._default_manager.filter(pk__in=[row.pk for row in rows]))
        names = dict(found.order_by().values_list("pk", "state_name"))
        for row in rows:
            # A row that was deleted in between was in its last state.
            row.shown_state = self.named(names.get(row.pk, self.all[-1].name))

    def count(self) -> dict[str, int]:
        rows = self.annotated(self.model._default_manager.all()).order_by()
        return dict(rows.values_list("state_name").annotate(Count("pk")))


def reason_of(watch: Watch) -> tuple[str, str]:
    """Why the watch is in its state, as a code and in words; of a disabled app, why it is disabled."""
    if watch.app.disabled_at:
        return EndpointDisabled.code, watch.app.disabled_reason
    return watch.last_error_code, watch.last_error


def _out_of_attempts() -> Q:
    return watch_state.failing() & ~Q(status=WatchStatus.SYNCED)


def _has_parked_files(**of: OuterRef) -> Q:
    return Q(Exists(Parked.objects.filter(**of)))


def _is_served() -> Q:
    return Q(synced_at__isnull=False) | Q(files__gt=0)


def _unreadable() -> Q:
    watches = Watch.objects.filter(repository=OuterRef("pk"))
    return Q(Exists(watches)) & ~Q(Exists(watches.filter(access_denied_at=None)))


WATCH = States(
    Watch,
    [
        State(
            name="disabled",
            label="disabled",
            tone="bad",
            condition=lambda: Q(app__disabled_at__isnull=False),
            meaning="The app is disabled: nothing is sent to it.",
            cure="Ping it, and enable it when it answers.",
        ),
        State(
            name="refused",
            label="token refused",
            tone="bad",
            condition=lambda: Q(access_denied_at__isnull=False),
            meaning="The git host does not let the watch's token read the repository. The app gets nothing.",
            cure="Ask for a new token and change it here.",
        ),
        State(
            name="failed",
            label="failed",
            tone="bad",
            condition=lambda: Q(status=WatchStatus.FAILED),
            meaning="Out of attempts, for the reason that is shown. Tried again at the next look at the repository.",
            cure="See the reason, then retry.",
        ),
        State(
            name="again",
            label="failed, trying again",
            tone="bad",
            condition=_out_of_attempts,
            meaning="Out of attempts, and the next one waits or runs. It stays on the overview until a success.",
            cure="See the reason.",
        ),
        State(
            name="scanning",
            label="scanning",
            tone="busy",
            condition=lambda: Q(status=WatchStatus.SCANNING),
            meaning="A worker is fetching or delivering.",
            cure="None needed.",
        ),
        State(
            name="retrying",
            label="waiting to retry",
            tone="warn",
            condition=lambda: Q(status=WatchStatus.PENDING) & ~Q(last_error=""),
            meaning="An attempt failed; the next one comes by itself, at the time that is shown.",
            cure="None needed; to try at once, retry.",
        ),
        State(
            name="pending",
            label="pending snapshot",
            tone="calm",
            condition=lambda: Q(status=WatchStatus.PENDING),
            meaning="Waiting for a worker, for the first time or again.",
            cure="None needed. If it stays, look at the queue.",
        ),
        State(
            name="parked",
            label="synced but for parked files",
            tone="warn",
            condition=lambda: _has_parked_files(watch=OuterRef("pk")),
            meaning="The app has all but the files that its endpoint refused, which are parked.",
            cure="Look at the reasons, then retry the parked files.",
        ),
        State(
            name="synced",
            label="synced",
            tone="good",
            condition=lambda: Q(status=WatchStatus.SYNCED),
            meaning="The app has acknowledged every file of the newest snapshot.",
            cure="None needed.",
        ),
    ],
)

REPOSITORY = States(
    Repository,
    [
        State(
            name="open",
            label="circuit open",
            tone="bad",
            condition=lambda: Q(circuit_open_until__isnull=False),
            meaning="It failed too often and is left alone until the probe that is shown.",
            cure="See the reason, then reset the circuit.",
        ),
        State(
            name="unreadable",
            label="no token can read it",
            tone="bad",
            condition=_unreadable,
            meaning="The git host refuses the token of every watch, so nobody gets anything of it.",
            cure="Change the token of its watches.",
        ),
        State(
            name="repair",
            label="to be cloned anew",
            tone="warn",
            condition=lambda: Q(needs_repair=True),
            meaning="The clone lacks something, or somebody asked for a new one. The old one serves until then.",
            cure="None needed. If it stays, look at the queue.",
        ),
        State(
            name="failing",
            label="failing",
            tone="warn",
            condition=lambda: Q(consecutive_failures__gt=0),
            meaning="The last look failed, for the reason that is shown; it is tried again after a pause.",
            cure="None needed; to try at once, reset the circuit.",
        ),
        State(
            name="unseen",
            label="not looked at yet",
            tone="calm",
            condition=lambda: Q(last_checked_at=None),
            meaning="Watched, and waiting for a worker.",
            cure="None needed. If it stays, look at the queue.",
        ),
        State(
            name="healthy",
            label="healthy",
            tone="good",
            condition=lambda: Q(consecutive_failures=0),
            meaning="The last look at it succeeded.",
            cure="None needed.",
        ),
    ],
)

APP = States(
    App,
    [
        State(
            name="disabled",
            label="disabled",
            tone="bad",
            condition=lambda: Q(disabled_at__isnull=False),
            meaning="Nothing is sent to it: by an operator, after 410 Gone, or after days without an accepted file.",
            cure="Ping it, and enable it when it answers.",
        ),
        State(
            name="failing",
            label="failing",
            tone="warn",
            condition=lambda: Q(failing_since__isnull=False),
            meaning="Its endpoint has accepted nothing since the time that is shown; it is tried again after pauses.",
            cure="None needed until its watches fail. To see what it answers, ping it and look at its deliveries.",
        ),
        State(
            name="resting",
            label="asked for a pause",
            tone="warn",
            condition=lambda: Q(resting_until__gt=timezone.now()),
            meaning="Its endpoint answered with Retry-After; nothing is sent before that time.",
            cure="None needed.",
        ),
        State(
            name="refusing",
            label="refuses files",
            tone="warn",
            condition=lambda: _has_parked_files(watch__app=OuterRef("pk")),
            meaning="Its endpoint works, but has refused files, which are parked.",
            cure="Look at the parked files of its watches, then retry them.",
        ),
        State(
            name="slow",
            label="in the slow lane",
            tone="warn",
            condition=lambda: Q(slow_since__isnull=False),
            meaning="Its endpoint took too long to answer. It is served apart from the others until it is quick again.",
            cure="None needed.",
        ),
        State(
            name="idle",
            label="not sent to yet",
            tone="calm",
            condition=lambda: ~Q(Exists(Watch.objects.filter(_is_served(), app=OuterRef("pk")))),
            meaning="Nothing of what it watches now has reached it, or it watches nothing.",
            cure="None needed. To see whether it answers, ping it.",
        ),
        State(
            name="active",
            label="active",
            tone="good",
            condition=lambda: Q(disabled_at=None),
            meaning="Its endpoint accepts what is sent.",
            cure="None needed.",
        ),
    ],
)
