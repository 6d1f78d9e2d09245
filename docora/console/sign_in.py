"""Attempts to sign in are limited by address and by name. Attempts beyond the limit do not reach the password."""

import logging
import unicodedata
from datetime import timedelta

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from docora.limits import rate
from docora.limits.client_address import client_address
from repositories.errors import RateLimited

log = logging.getLogger("docora.console")

_REFUSED = "Sign-in refused, too many attempts"


def refusal(request: HttpRequest) -> HttpResponse | None:
    """The answer to an attempt beyond the limit; None for every other one."""
    # As Django's login form reads it: other spellings are the same user.
    name = unicodedata.normalize("NFKC", request.POST.get("username", "").strip())
    address = client_address(request)
    try:
        rate.spend_for_sign_in(address, name)
    except RateLimited as error:
        log.warning("%s, from %s", _REFUSED, address)
        _write_log(name, address)
        context = {**admin.site.each_context(request), "title": "Too many attempts", "seconds": error.retry_after}
        answer = TemplateResponse(request, "docora/console/too_many_attempts.html", context, status=429)
        answer["Retry-After"] = str(error.retry_after)
        return answer
    return None


def _write_log(name: str, address: str) -> None:
    """Once a minute for each user: a thousand attempts must not fill the table.

    A name that is no user's is not written down: people type passwords into the wrong field.
    """
    user = User.objects.filter(username=name).first()
    lately = timezone.now() - timedelta(minutes=1)
    if (
        not user
        or LogEntry.objects.filter(user=user, change_message__startswith=_REFUSED, action_time__gt=lately).exists()
    ):
        return
    LogEntry.objects.create(
        user=user,
        content_type=ContentType.objects.get_for_model(User),
        object_id=str(user.pk),
        object_repr=str(user),
        action_flag=CHANGE,
        change_message=f"{_REFUSED}, from {address}",
    )
