"""Requests per second of the authenticated list call, with 1 app and with 10,000: the price of one is the price of all.

A real gunicorn on 127.0.0.1, as `manage.py up` starts it, on a database of its own; limits off. Each row is the
median of several rounds, alternating between the two, so that a noisy neighbour hits both alike.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from docora.processes import valkey

_ROOT = Path(__file__).parent.parent
_CLIENTS = 4
_ROUND_SECONDS = 1.0
_ROUNDS = 15
_MANY = 10_000
_FILL = """
from repositories.models import App
App.objects.bulk_create(
    [App(name=f"App {n}", base_url="https://a.example", bearer_hash=f"{n:064d}", webhook_key="k" * 16)
     for n in range(%d)], batch_size=500)
"""


class Server:
    """Docora's web part alone, with some apps, one of which asks."""

    def __init__(self, home: Path, port: int, *, apps: int) -> None:
        self.port = port
        self._environment = {
            "PATH": os.environ["PATH"],
            "DOCORA_DATA_DIR": str(home),
            "DOCORA_APP_RATE": "0",
            "DOCORA_ADDRESS_RATE": "0",
        }
        home.mkdir()
        self._store = valkey.start(home / "valkey" / "valkey.sock", persistent=False)
        self._manage("migrate", "--verbosity=0")
        self.bearer_token = json.loads(self._manage("onboard", "Bench", "https://b.example", "--json"))["bearer_token"]
        self._manage("shell", "--verbosity=0", "--command", _FILL % (apps - 1))
        words = f"-m gunicorn docora.wsgi --workers 2 --threads 4 --bind 127.0.0.1:{port}"
        words += " --no-control-socket --log-level error"
        self._web = subprocess.Popen([sys.executable, *words.split()], env=self._environment, cwd=_ROOT)
        self._wait()

    def _manage(self, *words: str) -> str:
        command = [sys.executable, "manage.py", *words]
        return subprocess.run(
            command, env=self._environment, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def _wait(self) -> None:
        for _ in range(200):
            try:
                return self.ask(self.connect())
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the web server does not answer")

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(self, connection: http.client.HTTPConnection) -> None:
        connection.request("GET", "/api/repositories", headers={"Authorization": f"Bearer {self.bearer_token}"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the list call answered {answer.status}")

    def stop(self) -> None:
        for process in (self._web, self._store):
            process.terminate()
            process.wait(timeout=20)


def requests_per_second(server: Server) -> float:
    counts = [0] * _CLIENTS
    end = time.monotonic() + _ROUND_SECONDS

    def ask_again_and_again(number: int) -> None:
        connection = server.connect()
        while time.monotonic() < end:
            server.ask(connection)
            counts[number] += 1

    threads = [threading.Thread(target=ask_again_and_again, args=(number,)) for number in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / _ROUND_SECONDS


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="docora-bench-") as folder:
        servers = {}
        try:
            for number, apps in enumerate((1, _MANY)):
                servers[apps] = Server(Path(folder) / str(apps), 8471 + number, apps=apps)
            rates: dict[int, list[float]] = {apps: [] for apps in servers}
            for _ in range(_ROUNDS):
                for apps, server in servers.items():
                    rates[apps].append(requests_per_second(server))
        finally:
            for server in servers.values():
                server.stop()
    table = Table("apps", "requests/s (median)", "least", "most", title="GET /api/repositories, 4 clients")
    for apps, found in rates.items():
        table.add_row(f"{apps:,}", *(f"{value:.0f}" for value in (statistics.median(found), min(found), max(found))))
    Console().print(table)


if __name__ == "__main__":
    main()
