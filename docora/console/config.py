"""Django's admin, with Docora's own first page. Not in docora.apps: Django would take it for docora's own config."""

from django.contrib.admin.apps import AdminConfig


class ConsoleConfig(AdminConfig):
    default_site = "docora.console.site.ConsoleSite"
