"""The filters of the lists."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest


class ChoiceFilter(admin.SimpleListFilter):
    """Named choices, each with its label and its condition."""

    offered: ClassVar[Mapping[str, tuple[str, Q]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, label) for name, (label, _) in self.offered.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        _, condition = self.offered.get(self.value() or "", ("", Q()))
        return queryset.filter(condition)
