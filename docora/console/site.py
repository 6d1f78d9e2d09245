"""The admin site: Django's, with the overview as its first page and the page of bulk operations."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path

if TYPE_CHECKING:
    _Site = admin.AdminSite
else:
    from unfold.sites import UnfoldAdminSite as _Site


class ConsoleSite(_Site):
    site_title = site_header = "Docora"

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        from docora.console import overview  # the models are loaded after the site

        shown = {"title": "Overview", "overview": overview.look(request), **(extra_context or {})}
        return super().index(request, shown)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        from docora.console import sign_in

        refusal = sign_in.refusal(request) if request.method == "POST" else None
        return refusal or super().login(request, extra_context)

    def get_urls(self) -> list[URLPattern | URLResolver]:
        from docora.console import bulk

        return [path("bulk/<slug:run_id>/", self.admin_view(bulk.page), name="bulk"), *super().get_urls()]
