"""The roles of the admin.

A superuser may do everything, an operator everything but users. A viewer sees every page, but no contents of files,
and changes nothing. The groups get their permissions after every migration, so that new models are in them at once.
"""

from typing import Any

from django.apps import AppConfig, apps
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import Group, Permission
from django.db import connections
from django.db.models import Q

OPERATOR = "operator"
VIEWER = "viewer"
_ROOMS = ["repositories", "snapshots"]
_LOOK = Q(content_type__app_label__in=_ROOMS, codename__startswith="view_") | Q(codename="view_logentry")
_OPERATE = _LOOK | Q(content_type__app_label__in=[*_ROOMS, "django_rq"])


def make_roles(sender: AppConfig, using: str, **_: Any) -> None:
    """Receives post_migrate, which is sent once per app; the last app's turn is soon enough for all."""
    if sender.label != "django_rq" or Group._meta.db_table not in connections[using].introspection.table_names():
        return
    create_permissions(apps.get_app_config("django_rq"), using=using, verbosity=0)
    of_roles = Permission.objects.using(using).filter(content_type__app_label="auth", content_type__model="group")
    for permission in of_roles.filter(name__endswith=" group"):
        # From before the console said role: Django does not rename what it has made.
        of_roles.filter(pk=permission.pk).update(name=permission.name.replace(" group", " role"))
    for name, permissions in ((OPERATOR, _OPERATE), (VIEWER, _LOOK)):
        group, _made = Group.objects.using(using).get_or_create(name=name)
        group.permissions.set(Permission.objects.using(using).filter(permissions))
