"""The URLs of the API, the admin and the health checks. Hooks come in before: docora/api/hooks/middleware.py."""

from django.contrib import admin
from django.urls import path
from django.views.decorators.http import require_safe
from django.views.generic import RedirectView

from docora import health
from docora.api.mount import api, api_v1
from docora.metrics.view import metrics

admin.autodiscover()

# A browser that is pointed at the API itself is shown what it can do.
_to_the_docs = require_safe(RedirectView.as_view(pattern_name="api-v1:openapi-view"))

urlpatterns = [
    path("", RedirectView.as_view(url="/admin/")),
    path("favicon.ico", RedirectView.as_view(url="/static/docora/icon.svg")),
    path("health", health.health),
    path("version", health.version),
    path("ready", health.ready),
    path("metrics", metrics),
    path("api", _to_the_docs),
    path("api/", _to_the_docs),
    path("api/v1", _to_the_docs),
    path("api/v1/", _to_the_docs),
    path("api/v1/", api_v1.urls),
    path("api/", api.urls),
    path("admin/", admin.site.urls),
]
