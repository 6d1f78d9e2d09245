"""Where each door is."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/django_rq/", include("django_rq.urls")),
    path("admin/", admin.site.urls),
]
