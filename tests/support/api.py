"""A client of the HTTP API, without a server in between."""

import json
from typing import Any

from django.test import Client


class Api:
    def __init__(self, bearer_token: str, **headers: str) -> None:
        authorization = {"Authorization": f"Bearer {bearer_token}"} if bearer_token else {}
        self.client = Client(headers=headers | authorization, raise_request_exception=False)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = body if isinstance(body, str) else json.dumps(body)
        sent = "" if body is None else data
        return self.client.generic(method, path, sent, content_type="application/json", headers=headers)

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def watch(self, url: str, token: str | None = None, **options: Any) -> Any:
        body = {"github_url": url} if token is None else {"github_url": url, "github_token": token}
        return self.call("POST", "/api/repositories", body | options)
