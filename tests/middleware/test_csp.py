"""What the pages of Docora may load and run; the browser's own view of it is in the operator's journey."""

import pytest
from django.test import Client

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


def directives(client: Client, path: str) -> dict[str, str]:
    header = client.get(path)["Content-Security-Policy"]
    return {name: sources for name, _, sources in (part.partition(" ") for part in header.split("; "))}


@pytest.mark.parametrize("path", ["/admin/login/", "/admin/nothing/", "/api/docs", "/api/v1/docs"])
def test_a_page_runs_no_inline_script_and_loads_only_from_here(client: Client, path: str) -> None:
    found = directives(client, path)
    assert "unsafe-inline" not in found["script-src"]
    assert found["default-src"] == found["base-uri"] == found["frame-ancestors"] == "'none'"
    sources = {source for sources in found.values() for source in sources.split()}
    assert sources <= {"'none'", "'self'", "data:", "'unsafe-inline'", "'unsafe-eval'"}


def test_only_the_admins_theme_compiles_scripts(client: Client) -> None:
    assert "unsafe-eval" in directives(client, "/admin/login/")["script-src"]
    assert "unsafe-eval" not in directives(client, "/api/docs")["script-src"]


@pytest.mark.parametrize("path", ["/", "/health", "/api/app", "/api/v1/openapi.json", "/nothing", "/administrator/"])
def test_what_is_no_page_may_load_nothing(client: Client, path: str) -> None:
    assert "script-src" not in directives(client, path)
    assert directives(client, path)["default-src"] == "'none'"
