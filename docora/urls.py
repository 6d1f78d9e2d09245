"""Where each door is."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from docora import health
from docora.api.mount import api, api_v1
from docora.metrics.view import metrics

admin.autodiscover()

urlpatterns = [
    path("", RedirectView.as_view(url="/admin/")),
    path("health", health.health),
    path("version", health.version),
    path("ready", health.ready),
    path("metrics", metrics),
    path("api/v1/", api_v1.urls),
    path("api/", api.urls),
    path("admin/", admin.site.urls),
]
