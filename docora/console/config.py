"""Django's admin, with Docora's own first page. Not in docora.apps: Django would take it for docora's own config."""

from django.contrib.admin.apps import SimpleAdminConfig


class ConsoleConfig(SimpleAdminConfig):
    """Pages are registered with the URLs: workers and commands, which show none, start in half the time."""

    default_site = "docora.console.site.ConsoleSite"
