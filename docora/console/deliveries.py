"""Deliveries: every attempt to tell an app something, what was sent, what came back, and a way to send it again."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Prefetch, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from docora.console import bulk
from docora.console.base import SECRETS, BoundedPaginator, Fact, OfAWatchAdmin
from docora.console.display import NOTHING, ago, code, commit_link, milliseconds, outcome_of, page_link
from docora.console.filters import ChoiceFilter
from docora.console.operations import Operation
from repositories.models import App, Repository, Watch
from snapshots.changes import Event
from snapshots.delivery import notices, rebuild, redelivery
from snapshots.models import ACCEPTED, Delivery

READ_CONTENT = "snapshots.read_content"
_SEARCHED = 50_000
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
    offered = {event: (event, Q(event=event)) for event in (*Event, notices.SYNC_FAILED, notices.SYNC_RECOVERED)}


class OutcomeFilter(ChoiceFilter):
    title = parameter_name = "outcome"
    offered = {
        "accepted": ("Accepted", ACCEPTED),
        "refused": ("Refused", Q(status__lt=200) | Q(status__gte=300)),
        "silent": ("No answer", Q(status=None)),
    }


def _redeliver(delivery: Delivery, _: dict[str, Any]) -> str:
    redelivery.redeliver(delivery)
    return f"{delivery.path or delivery.event} is being sent to {delivery.watch.app.name} again."


@admin.register(Delivery)
class DeliveryAdmin(OfAWatchAdmin):
    list_display = ["attempted", "outcome", "event", "path", "app", "repository", "time"]
    list_filter = [WhenFilter, OutcomeFilter, EventFilter]
    search_fields = ["path"]
    search_help_text = "Path, app, repository, status or message id"
    linked_by = {"watch__app__id__exact", "watch__repository__id__exact", "watch__id__exact"}
    ordering = ["-attempted_at"]
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
        if search_term and not self.linked_by.intersection(request.GET):
            queryset = queryset.filter(attempted_at__gte=_searched_since())
        for word in search_term.split():
            queryset = queryset.filter(_matching(word))
        return queryset, False

    @admin.display(description="When", ordering="attempted_at")
    def attempted(self, delivery: Delivery) -> object:
        return ago(delivery.attempted_at)

    @admin.display(description="Answer", ordering="status")
    def outcome(self, delivery: Delivery) -> SafeString:
        return outcome_of(delivery)

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
        others = Delivery.objects.filter(watch=delivery.watch_id, message_id=delivery.message_id)
        return {
            "headers": rebuild.headers_of(delivery),
            "body": rebuild.body_of(delivery) if request.user.has_perm(READ_CONTENT) else None,
            "attempts": others.exclude(pk=delivery.pk).order_by("-attempted_at")[:10],
        }

    @admin.action(description="Redeliver", permissions=["operate"])
    def redeliver_selected(self, request: HttpRequest, rows: QuerySet[Delivery]) -> HttpResponse:
        return bulk.start(request, "redeliver", rows)


def _searched_since() -> datetime:
    """Where the newest attempts that a search reads begin; the ones of one app, repository or watch are all read."""
    moments = Delivery.objects.order_by("-attempted_at").values_list("attempted_at", flat=True)
    return next(iter(moments[_SEARCHED : _SEARCHED + 1]), datetime.min.replace(tzinfo=UTC))


def _matching(word: str) -> Q:
    """By way of the small tables: a join of every attempt with its names would be read in full."""
    apps = App.objects.filter(Q(name__icontains=word) | Q(public_id=word)).values("pk")
    named = Q(owner__icontains=word) | Q(name__icontains=word) | Q(public_id=word)
    repositories = Repository.objects.filter(named).values("pk")
    watches = Watch.objects.filter(Q(app__in=apps) | Q(repository__in=repositories)).values("pk")
    found = Q(path__icontains=word) | Q(watch__in=watches) | Q(message_id=word)
    return found | Q(status=int(word)) if word.isdecimal() and len(word) == 3 else found
