"""A client app as its developer would write it: HTTP in, webhooks out, nothing else known of Docora."""

import http.client
import json
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from docora.demo.githost import GitHost
from docora.demo.receiver import Receiver
from tests.support.service import Service, wait_until


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Message
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


class ClientApp:
    def __init__(self, service: Service, name: str, receiver: Receiver) -> None:
        words = ("onboard", name, receiver.url, "--webhook-key", "-", "--json")
        self.credentials = json.loads(service.manage(*words, typed=receiver.webhook_keys[0]).stdout)
        self.receiver = receiver
        receiver.app_id = self.credentials["app_id"]
        self._service = service

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> HttpAnswer:
        connection = http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=60)
        sent = {"Authorization": f"Bearer {self.credentials['bearer_token']}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent | headers)
            answer = connection.getresponse()
            return HttpAnswer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        return self.call("GET", path).json()

    def watch(self, url: str, token: str = "", **options: Any) -> HttpAnswer:
        return self.call("POST", "/api/repositories", {"github_url": url, "github_token": token, **options})

    def unwatch(self, repository_id: str) -> HttpAnswer:
        return self.call("DELETE", f"/api/repositories/{repository_id}")

    def status(self, repository_id: str) -> str:
        return str(self.get(f"/api/repositories/{repository_id}").get("status"))

    def wait_until_synced(self, repository_id: str) -> None:
        wait_until(lambda: self.status(repository_id) == "synced", f"{repository_id} is synced")


def settings_for(host: GitHost) -> dict[str, str]:
    """Let a service dial the cast, look often and give up nothing."""
    return {
        "DOCORA_GIT_HOSTS": host.address,
        "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
        "SCAN_INTERVAL": "1",
        "RESCAN_INTERVAL": "2",
        "RETRY_BASE_DELAY": "0.2",
    }


def clones_of(service: Service) -> list[Path]:
    return list((service.data / "repos").glob("@*/*"))


def tracebacks_of(service: Service) -> list[str]:
    texts = {path.name: path.read_text() for path in (service.data / "logs").glob("*.log")}
    return [f"{name}: {text[text.index('Traceback') :][:3000]}" for name, text in texts.items() if "Traceback" in text]
