"""Who may do what in the admin: a superuser everything, an operator everything but users, a viewer nothing but look.

The groups are made again after every migration, so that a new model belongs to them at once.
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
    """A receiver of post_migrate, which comes once for each app; the last room's turn is soon enough for all."""
    if sender.label != "django_rq" or Group._meta.db_table not in connections[using].introspection.table_names():
        return
    create_permissions(apps.get_app_config("django_rq"), using=using, verbosity=0)
    for name, permissions in ((OPERATOR, _OPERATE), (VIEWER, _LOOK)):
        group, _made = Group.objects.using(using).get_or_create(name=name)
        group.permissions.set(Permission.objects.using(using).filter(permissions))
