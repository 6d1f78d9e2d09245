"""The filters of the lists."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from docora.console.states import States


class ChoiceFilter(admin.SimpleListFilter):
    """Named choices, each with its label and its condition."""

    offered: ClassVar[Mapping[str, tuple[str, Q]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, label) for name, (label, _) in self.offered.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        _, condition = self.offered.get(self.value() or "", ("", Q()))
        return queryset.filter(condition)


class StateFilter(admin.SimpleListFilter):
    """Filters by the state that a row is shown with."""

    title = parameter_name = "state"
    states: ClassVar[States]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state.name, state.label) for state in self.states.all]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return self.states.annotated(queryset).filter(state_name=self.value()) if self.value() else queryset
