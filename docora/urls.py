"""Where each door is."""

from django.contrib import admin
from django.urls import include, path

from docora import health

urlpatterns = [
    path("health", health.health),
    path("version", health.version),
    path("admin/django_rq/", include("django_rq.urls")),
    path("admin/", admin.site.urls),
]
