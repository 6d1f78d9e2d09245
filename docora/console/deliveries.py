"""Deliveries: every attempt to tell an app something, what was sent, what came back, and a way to send it again."""

from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from django.contrib import admin
from django.db.models import Max, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from docora.console import bulk
from docora.console.base import SECRETS, BoundedPaginator, Fact, OfAWatchAdmin
from docora.console.display import NOTHING, ago, code, commit_link, milliseconds, outcome_of, page_link, path_of
from docora.console.filters import ChoiceFilter
from docora.console.operations import Operation
from repositories.models import App, OptionalEvent, Repository, Watch
from snapshots.changes import Event
from snapshots.delivery import notices, rebuild, redelivery
from snapshots.models import ACCEPTED, NO_ANSWER, REFUSED, Delivery

READ_CONTENT = "snapshots.read_content"
# The newest attempts that are searched, or filtered by what has no index, or shown of an app or a repository.
NEWEST = 50_000
# On each side of an attempt, those among which the others at the same message are looked for. It has no index: ids are
# random, and would make each attempt that is recorded three times as dear.
_NEIGHBOURS = 200
_WINDOWS = {"hour": timedelta(hours=1), "week": timedelta(days=7), "all": None}


class WhenFilter(admin.SimpleListFilter):
    """The last day unless asked otherwise: a search through all that was ever sent is slow, and seldom meant."""

    title = "time"
    parameter_name = "when"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("hour", "Last hour"), ("week", "Last 7 days"), ("all", "All that is kept")]

    def choices(self, changelist: Any) -> Any:
        first, *others = super().choices(changelist)
        return [{**first, "display": "Last day"}, *others]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> QuerySet[Delivery]:
        window = _WINDOWS.get(self.value() or "", timedelta(days=1))
        return queryset.filter(attempted_at__gte=timezone.now() - window) if window else queryset


class EventFilter(ChoiceFilter):
    """Named here: to look for the events that occur would read every row."""

    title = parameter_name = "event"
    offered = {event: (event, Q(event=event)) for event in (*Event, notices.SYNC_FAILED, *OptionalEvent.values)}


class OutcomeFilter(ChoiceFilter):
    title = parameter_name = "outcome"
    offered = {
        "accepted": ("Accepted", ACCEPTED),
        "refused": ("Refused", REFUSED),
        "silent": ("No answer", NO_ANSWER),
    }


_HAS_INDEX = {"refused", "silent"}
# Filters by which every row would be read, and links to the attempts of several watches.
_READS_EACH_ROW = {"event", "outcome", "watch__app__id__exact", "watch__repository__id__exact"}
_BEGINNING, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def _redeliver(delivery: Delivery, _: dict[str, Any]) -> str:
    redelivery.redeliver(delivery)
    return f"{delivery.path or delivery.event} is being sent to {delivery.watch.app.name} again."


@admin.register(Delivery)
class DeliveryAdmin(OfAWatchAdmin):
    list_display = ["attempted", "outcome", "event", "file", "app", "repository", "time"]
    list_filter = [WhenFilter, OutcomeFilter, EventFilter]
    search_fields = ["path"]
    search_help_text = "Path, app, repository, status or message id"
    linked_by = {"watch__app__id__exact", "watch__repository__id__exact", "watch__id__exact"}
    ordering = ["-attempted_at"]
    sortable_by = ["attempted"]  # by another column, a day's attempts would be sorted for each page
    paginator = BoundedPaginator
    change_form_template = "docora/console/delivery.html"
    actions = ["redeliver_selected"]
    operations = [
        Operation(
            name="redeliver",
            label="Redeliver",
            icon="send",
            run=_redeliver,
            applies_to=lambda delivery: bool(delivery.path),
            sends=True,
        )
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Delivery]:
        """Fetched beside, not joined: SQLite would begin a join at the small tables and sort every row."""
        watches = Watch.objects.select_related("app", "repository").defer(*SECRETS)
        return super().get_queryset(request).prefetch_related(Prefetch("watch", watches))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Delivery], search_term: str
    ) -> tuple[QuerySet[Delivery], bool]:
        """Each word must be in the path, the app's or the repository's name, or be a status or a message id."""
        if search_term or set(request.GET).intersection(_READS_EACH_ROW):
            queryset = _newest(queryset, request)
        for word in search_term.split():
            queryset = queryset.filter(_matching(word))
        return queryset, False

    @admin.display(description="When", ordering="attempted_at")
    def attempted(self, delivery: Delivery) -> object:
        return ago(delivery.attempted_at)

    @admin.display(description="Answer", ordering="status")
    def outcome(self, delivery: Delivery) -> SafeString:
        return outcome_of(delivery)

    @admin.display(description="Path")
    def file(self, delivery: Delivery) -> SafeString | str:
        return path_of(delivery)

    @admin.display(description="Took", ordering="milliseconds")
    def time(self, delivery: Delivery) -> str:
        return milliseconds(delivery.milliseconds)

    def facts(self, delivery: Delivery) -> list[Fact]:
        watch = delivery.watch
        return [
            ("Answer", outcome_of(delivery)),
            ("Error", delivery.error or NOTHING),
            ("Path", delivery.path or NOTHING),
            ("Piece", f"{delivery.piece} of {delivery.pieces}" if delivery.pieces else NOTHING),
            ("App", page_link(watch.app, watch.app.name)),
            ("Repository", page_link(watch.repository)),
            ("Watch", page_link(watch)),
            ("Commit", commit_link(watch.repository, delivery.commit_sha)),
            ("SHA-256", code(delivery.sha256)),
            ("Took", self.time(delivery)),
            ("When", ago(delivery.attempted_at)),
            ("Asked for by", "an operator or the app" if delivery.manual else "a change"),
            ("Message id", code(delivery.message_id)),
        ]

    def panels(self, request: HttpRequest, delivery: Delivery) -> dict[str, object]:
        return {
            "headers": rebuild.headers_of(delivery),
            "body": rebuild.body_of(delivery) if request.user.has_perm(READ_CONTENT) else None,
            "attempts": _others_at_its_message(delivery)[:10],
        }

    @admin.action(description="Redeliver", permissions=["operate"])
    def redeliver_selected(self, request: HttpRequest, rows: QuerySet[Delivery]) -> HttpResponse:
        return bulk.start(request, "redeliver", rows)


def _newest(queryset: QuerySet[Delivery], request: HttpRequest) -> QuerySet[Delivery]:
    """The newest of them, without a gap: of all, or of the watches that the list is linked to."""
    outcome = request.GET.get("outcome", "")
    attempts = Delivery.objects.filter(OutcomeFilter.offered[outcome][1] if outcome in _HAS_INDEX else Q())
    moments = attempts.order_by("-attempted_at").values_list("attempted_at", flat=True)
    links = {name.removeprefix("watch__"): request.GET[name] for name in DeliveryAdmin.linked_by & set(request.GET)}
    if links:
        watches = Watch.objects.filter(**links)
        ids = list(watches.values_list("pk", flat=True))
        # From each watch's own index. Since the moment from which the busiest one fills its share, no other has more.
        share = max(100, NEWEST // (len(ids) or 1))
        of_each = Subquery(moments.filter(watch=OuterRef("pk"))[share : share + 1])
        since = watches.aggregate(since=Max(of_each))["since"]
        queryset = queryset.filter(watch__in=ids)
    else:
        since = next(iter(moments[NEWEST : NEWEST + 1]), None)
    # A range with an end: without statistics, PostgreSQL takes one without an end for a third of the table.
    return queryset.filter(attempted_at__range=(since or _BEGINNING, _END))


def _others_at_its_message(delivery: Delivery) -> QuerySet[Delivery]:
    attempts = Delivery.objects.filter(watch=delivery.watch_id).values_list("pk", "message_id")
    before = attempts.filter(attempted_at__lte=delivery.attempted_at).order_by("-attempted_at")[:_NEIGHBOURS]
    after = attempts.filter(attempted_at__gte=delivery.attempted_at).order_by("attempted_at")[:_NEIGHBOURS]
    found = {pk for pk, message_id in chain(before, after) if message_id == delivery.message_id}
    return Delivery.objects.filter(pk__in=found - {delivery.pk}).order_by("-attempted_at")


def _matching(word: str) -> Q:
    """Apps and repositories are searched first: joined to their names, every attempt would be read."""
    apps = App.objects.filter(Q(name__icontains=word) | Q(public_id=word)).values("pk")
    named = Q(owner__icontains=word) | Q(name__icontains=word) | Q(public_id=word)
    repositories = Repository.objects.filter(named).values("pk")
    watches = Watch.objects.filter(Q(app__in=apps) | Q(repository__in=repositories)).values("pk")
    found = Q(path__icontains=word) | Q(watch__in=watches) | Q(message_id=word)
    return found | Q(status=int(word)) if word.isdecimal() and len(word) == 3 else found
