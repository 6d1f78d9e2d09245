"""A running service between a git host and its receivers, for the journeys of clones and snapshots."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from docora.demo.githost import GitHost
from docora.demo.receiver import Receiver
from tests.support.api_cast import ClientApp
from tests.support.service import Service


@dataclass(frozen=True)
class Scene:
    service: Service
    host: GitHost
    receivers: list[Receiver]
    apps: list[ClientApp]


@contextmanager
def scene(root: Path, *, apps: int, **environment: str) -> Iterator[Scene]:
    """Everything runs, and so many apps are onboarded; looks come several times a second."""
    with ExitStack() as stack:
        host = stack.enter_context(GitHost(root / "host"))
        receivers = [stack.enter_context(Receiver(webhook_key=f"the key of receiver {n}")) for n in range(apps)]
        service = Service(
            DOCORA_GIT_HOSTS=host.address,
            DOCORA_TRUSTED_NETWORKS="127.0.0.0/8",
            **{
                "SCAN_INTERVAL": "0.2",
                "RESCAN_INTERVAL": "0.2",
                "DOCORA_MIN_RESCAN_INTERVAL": "0.2",
                "RETRY_BASE_DELAY": "0.2",
                "REPO_LOCK_TTL": "5",
                "DOCORA_LOG_LEVEL": "DEBUG",
            }
            | environment,
        )
        stack.enter_context(service)
        yield Scene(service, host, receivers, [ClientApp(service, f"app {n}", r) for n, r in enumerate(receivers)])
