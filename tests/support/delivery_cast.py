"""A running service with a git host and receivers that it may dial."""

import json
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from tests.support.service import Service


class Stage:
    """`manage.py up` that looks at repositories every second; apps are onboarded all at once, which is quick."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.host = GitHost(folder / "host")
        often = {"SCAN_INTERVAL": "0.5", "RESCAN_INTERVAL": "0.5"}
        self.service = Service(DOCORA_TRUSTED_NETWORKS="127.0.0.0/8", **often | environment)

    def __enter__(self) -> Self:
        self.host.__enter__()
        try:
            self.service.environment["DOCORA_GIT_HOSTS"] = self.host.address
            self.service.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.service.close()
        self.host.__exit__(kind, error, trace)

    def onboard(self, *receivers: Receiver) -> list[str]:
        """The bearer token of each receiver's app."""
        urls = [receiver.url for receiver in receivers]
        keys = [receiver.webhook_keys[0] for receiver in receivers]
        script = (
            "import json; from repositories.accounts import onboard;"
            f"made = [onboard('app', url, webhook_key=key) for url, key in zip({urls!r}, {keys!r})];"
            "print(json.dumps([credentials.bearer_token for credentials in made]))"
        )
        tokens: list[str] = json.loads(
            self.service.manage("shell", "--no-imports", "-c", script).stdout.splitlines()[-1]
        )
        return tokens

    def watch(self, bearer_token: str, remote: HostedRepository) -> str:
        """The repository's id."""
        return str(self._call("POST", bearer_token, {"github_url": remote.url})["repository_id"])

    def _call(self, method: str, bearer_token: str, body: dict[str, str]) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310  our own server
            f"{self.service.url}/api/repositories",
            method=method,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {bearer_token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  the same
            answer: dict[str, Any] = json.load(response)
            return answer
