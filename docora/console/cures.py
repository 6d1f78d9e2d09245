"""What to do about a trouble, as a sentence in which each thing that it names is a link."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from docora.console.display import link, list_link
from repositories.models import App, Repository, Watch
from snapshots.models import Delivery, Parked


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a cure is for. A watch brings its app and its repository."""

    app: App | None = None
    repository: Repository | None = None
    watch: Watch | None = None


def of_watch(watch: Watch) -> Subject:
    return Subject(app=watch.app, repository=watch.repository, watch=watch)


def of(row: object) -> Subject:
    """Of any row. Of one that belongs to a watch, such as a delivery, it is the watch."""
    match row:
        case App():
            return Subject(app=row)
        case Repository():
            return Subject(repository=row)
    watch = row if isinstance(row, Watch) else getattr(row, "watch", None)
    return of_watch(watch) if watch else Subject()


def has_link(shown: SafeString) -> bool:
    """Whether something in it is a link."""
    return "<a " in shown


_Link = Callable[[Subject, str], SafeString | None]


def linked(text: str, subject: Subject, *, may_operate: bool) -> SafeString:
    """Users who may not press a button get its name without the link."""
    shown = [_link(part, subject, may_operate=may_operate) for part in _PHRASE.split(text)]
    return format_html_join("", "{}", ((part,) for part in shown))


def _link(part: str, subject: Subject, *, may_operate: bool) -> SafeString | str:
    if look := _LOOKS.get(part.lower()):
        return look(subject, part) or part
    operation = _OPERATIONS.get(part.lower())
    return _operation(operation, subject, part) if operation and may_operate else part


def _operation(name: str, subject: Subject, text: str) -> SafeString | str:
    kind, _, operation = name.partition(".")
    row = getattr(subject, kind)
    if row is None:
        return text
    return link(reverse(f"admin:repositories_{kind}_{operation}", args=[row.pk]), text)


def _rows_of(model: type[Delivery | Parked], subject: Subject, text: str) -> SafeString | None:
    if subject.watch:
        return list_link(model, text, watch__id__exact=subject.watch.pk)
    return list_link(model, text, watch__app__id__exact=subject.app.pk) if subject.app else None


def _watches(subject: Subject, text: str) -> SafeString | None:
    if subject.app:
        return list_link(Watch, text, app__id__exact=subject.app.pk)
    return list_link(Watch, text, repository__id__exact=subject.repository.pk) if subject.repository else None


def _queue(subject: Subject, text: str) -> SafeString:
    return link(reverse("admin:django_rq_dashboard_changelist"), text)


# The words that name a cure, in the hints of repositories/errors.py and in the states.
_LOOKS: dict[str, _Link] = {
    "look at its deliveries": partial(_rows_of, Delivery),
    "look at the parked files of its watches": partial(_rows_of, Parked),
    "look at the reasons": partial(_rows_of, Parked),
    "retry its watches": _watches,
    "change the token of its watches": _watches,
    "look at the queue": _queue,
}
_OPERATIONS = {
    "ping it": "app.ping",
    "enable it": "app.enable",
    "retry": "watch.retry",
    "retry the parked files": "watch.retry_parked",
    "change it here": "watch.change_token",
    "unwatch the repository": "watch.unwatch",
    "reset the circuit": "repository.reset_circuit",
    "re-clone": "repository.reclone",
}
_NAMES = sorted([*_LOOKS, *_OPERATIONS], key=len, reverse=True)
_PHRASE = re.compile(rf"\b({'|'.join(map(re.escape, _NAMES))})\b", re.IGNORECASE)
