"""Users, their roles, and the log of all that was done here. Users are the superuser's."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.http import HttpRequest

from docora.console.base import BoundedPaginator, ConsoleAdmin, Fact, ThemedAdmin
from docora.console.display import NOTHING, ago, link

admin.site.unregister(User)
admin.site.unregister(Group)

if TYPE_CHECKING:
    _UserAdmin = DjangoUserAdmin[User]
    _GroupAdmin = DjangoGroupAdmin
else:

    class _UserAdmin(DjangoUserAdmin, ThemedAdmin):
        from unfold.forms import AdminPasswordChangeForm as change_password_form
        from unfold.forms import UserChangeForm as form
        from unfold.forms import UserCreationForm as add_form

    class _GroupAdmin(DjangoGroupAdmin, ThemedAdmin):
        pass


def _say_role() -> None:
    """Django says group where the console says role. Its migrations do not see these names."""
    for model, one, many in (
        (Group, "role", "roles"),
        (User.groups.through, "role of a user", "roles of users"),
        (Group.permissions.through, "permission of a role", "permissions of roles"),
    ):
        model._meta.verbose_name, model._meta.verbose_name_plural = one, many
    User._meta.get_field("groups").verbose_name = "roles"
    # What goes with a role is listed before it is deleted.
    setattr(User.groups.through, "__str__", lambda row: f"{row.group} of {row.user}")  # noqa: B010  mypy knows no other
    setattr(Group.permissions.through, "__str__", lambda row: row.permission.name)  # noqa: B010  way to say it


_say_role()


@admin.register(User)
class UserAdmin(_UserAdmin):
    list_display = ["username", "email", "roles", "is_active", "is_superuser", "signed_in"]
    list_filter = ["is_superuser", "is_active", "groups"]

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("groups")

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "groups":
            kwargs["help_text"] = "A user has all permissions of each of these roles."
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    @admin.display(description="Roles")
    def roles(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all()) or NOTHING

    @admin.display(description="Last login", ordering="last_login")
    def signed_in(self, user: User) -> object:
        return ago(user.last_login)


@admin.register(Group)
class GroupAdmin(_GroupAdmin):
    pass


@admin.register(LogEntry)
class LogEntryAdmin(ConsoleAdmin):
    list_display = ["done", "user", "what", "action"]
    list_select_related = ["user", "content_type"]
    list_filter = ["user", "action_flag"]
    linked_by = {"user__id__exact"}
    search_fields = ["object_repr", "change_message"]
    search_help_text = "What it was done to, or what was done"
    ordering = ["-pk"]
    paginator = BoundedPaginator

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm("admin.view_logentry")

    @admin.display(description="When", ordering="action_time")
    def done(self, entry: LogEntry) -> object:
        return ago(entry.action_time)

    @admin.display(description="What")
    def what(self, entry: LogEntry) -> object:
        url = entry.get_admin_url()
        if url is None or entry.is_deletion():
            return entry.object_repr
        return link(url, entry.object_repr)

    @admin.display(description="Action")
    def action(self, entry: LogEntry) -> str:
        return f"{entry.get_action_flag_display()}: {entry.get_change_message() or NOTHING}"

    def facts(self, entry: LogEntry) -> list[Fact]:
        return [
            ("When", ago(entry.action_time)),
            ("User", entry.user),
            ("What", self.what(entry)),
            ("Action", self.action(entry)),
        ]
