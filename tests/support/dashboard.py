"""`make dashboard`: a picture of deploy/grafana/docora.json from a real run, into docs/screenshots.

A service with repositories, apps and faults runs for some minutes beside a real Prometheus. Each panel's query is asked
of that Prometheus, and its answer is drawn here: Grafana itself is not needed, so its look is not Grafana's.
"""

import html
import json
import math
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from tests.support.browser import find_chromium, open_browser
from tests.support.delivery_cast import Stage
from tests.support.metrics import TOKEN
from tests.support.service import ROOT, free_port, wait_until

PICTURE = ROOT / "docs" / "screenshots" / "dashboard.png"
DASHBOARD = ROOT / "deploy" / "grafana" / "docora.json"
DEPLOY = ROOT / "deploy" / "prometheus"
SECONDS = 300.0
_SCRAPE, _RATE = "2s", "20s"
_COLUMN, _ROW, _GAP = 60, 34, 8
# Names in one line below a graph.
_LEGEND = 3
_COLOURS = ("#2563eb", "#16a34a", "#d97706", "#dc2626", "#7c3aed", "#0891b2", "#64748b")

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: Points


class Prometheus:
    """A real one, with our own configuration, but quick."""

    def __init__(self, folder: Path, docora_port: int) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        config = (DEPLOY / "prometheus.yml").read_text().replace("15s", _SCRAPE)
        (folder / "prometheus.yml").write_text(config.replace("127.0.0.1:8000", f"127.0.0.1:{docora_port}"))
        (folder / "alerts.yml").write_text((DEPLOY / "alerts.yml").read_text())
        (folder / "docora-metrics-token").write_text(TOKEN)
        self._folder = folder

    @contextmanager
    def running(self) -> Iterator[None]:
        with (self._folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._is_ready, "Prometheus starts")
            yield
        finally:
            process.terminate()
            process.wait()

    def ask(self, query: str, *, start: float, end: float) -> list[dict[str, Any]]:
        parameters = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": 2})
        with urllib.request.urlopen(f"{self._url}/api/v1/query_range?{parameters}", timeout=30) as answer:  # noqa: S310
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2) as answer:  # noqa: S310  our own server
                return bool(answer.status == 200)
        except OSError:
            return False


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit("No Chromium is installed.")
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        page = _record(Path(folder), seconds)
    with open_browser(chromium) as browser:
        context = browser.new_context(viewport={"width": 24 * _COLUMN + 2 * _GAP, "height": 400})
        shown = context.new_page()
        shown.set_content(page)
        shown.screenshot(path=PICTURE, full_page=True)
    print(PICTURE)


def _record(folder: Path, seconds: float) -> str:
    with ExitStack() as stack:
        receivers = [stack.enter_context(Receiver(webhook_key=f"key-of-receiver-{n}")) for n in range(3)]
        stage = stack.enter_context(Stage(folder, DOCORA_METRICS_TOKEN=TOKEN, DELIVERY_CONCURRENCY="2"))
        prometheus = Prometheus(folder, stage.service.port)
        stack.enter_context(prometheus.running())
        remotes = [stage.host.create(f"acme/handbook-{number}") for number in range(4)]
        for remote in remotes:
            remote.commit({f"docs/{number}.md": "text\n" * 50 for number in range(60)})
        for token in stage.onboard(*receivers):
            for remote in remotes:
                stage.watch(token, remote)
        began = time.time()
        _play(remotes, receivers, seconds)
        return _page(prometheus, began, time.time())


def _play(remotes: list[HostedRepository], receivers: list[Receiver], seconds: float) -> None:
    """Commits of growing size; in the middle, one app fails, another one is slow and refuses a file now and then."""
    ends_at, round_number = time.monotonic() + seconds, 0
    while (left := ends_at - time.monotonic()) > 0:
        round_number += 1
        remote = remotes[round_number % len(remotes)]
        remote.commit({f"docs/{n}.md": f"round {round_number}\n" * 20 for n in range(1 + round_number % 12)})
        faults = {1: ReceiverFault(status=503), 2: ReceiverFault(delay=0.3)} if 0.35 < left / seconds < 0.65 else {}
        if round_number % 5 == 0:
            faults[0] = ReceiverFault(status=422, times=1)
        with ExitStack() as stack:
            for number, fault in faults.items():
                stack.enter_context(receivers[number].faults.put(fault))
            time.sleep(2)


def _page(prometheus: Prometheus, start: float, end: float) -> str:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * _ROW
    drawn = "".join(_panel(panel, prometheus, start, end) for panel in panels)
    return (
        "<style>body{margin:8px;font:12px sans-serif;background:#f1f5f9}div{position:absolute;background:#fff;"
        "border:1px solid #e2e8f0;border-radius:4px;box-sizing:border-box;padding:6px 8px}b{font-size:13px}"
        f".stat{{font-size:26px;text-align:center;color:#2563eb;margin-top:24px}}main{{position:relative;height:{height}px}}"
        f"</style><main>{drawn}</main><p>{end - start:.0f} s of a running Docora; each number was asked of Prometheus"
        " by the query of its panel in deploy/grafana/docora.json.</p>"
    )


def _panel(panel: dict[str, Any], prometheus: Prometheus, start: float, end: float) -> str:
    at, unit = panel["gridPos"], panel["fieldConfig"]["defaults"]["unit"]
    width, height = at["w"] * _COLUMN - _GAP, at["h"] * _ROW - _GAP
    series = [
        Series(_label(target.get("legendFormat", ""), found["metric"]), _points(found["values"]))
        for target in panel["targets"]
        for found in prometheus.ask(target["expr"].replace("$__rate_interval", _RATE), start=start, end=end)
    ]
    if panel["type"] == "stat":
        newest = [each.points[-1][1] for each in series if each.points]
        body = f'<p class="stat">{_amount(newest[0], unit) if newest else "none"}</p>'
    else:
        body = _graph(series, unit, width - 18, height - 30, start, end)
    place = f"left:{at['x'] * _COLUMN}px;top:{at['y'] * _ROW}px;width:{width}px;height:{height}px"
    return f'<div style="{place}"><b>{html.escape(panel["title"])}</b>{body}</div>'


def _label(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), legend)


def _points(values: list[tuple[float, str]]) -> Points:
    return [(moment, float(value)) for moment, value in values if value != "NaN"]


def _graph(series: list[Series], unit: str, width: int, height: int, start: float, end: float) -> str:
    left, top, bottom = 56, 8, height - 16 * math.ceil(len(series) / _LEGEND) - 26
    most = max((value for each in series for _, value in each.points), default=0) or 1.0
    parts = [f'<svg width="{width}" height="{height}">']
    for step in range(5):
        up = bottom - (bottom - top) * step / 4
        parts.append(f'<path d="M{left} {up:.0f}H{width}" stroke="#e2e8f0"/>')
        amount = _amount(most * step / 4, unit)
        parts.append(f'<text x="{left - 6}" y="{up + 4:.0f}" text-anchor="end" fill="#475569">{amount}</text>')
    for step in range(4):
        across, minutes = left + (width - left) * step / 4, (end - start) / 60 * step / 4
        parts.append(f'<text x="{across:.0f}" y="{bottom + 16}" fill="#94a3b8">{minutes:.1f} min</text>')
    for number, each in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [
            f"{left + (moment - start) / (end - start) * (width - left):.1f} "
            f"{bottom - (bottom - top) * value / most:.1f}"
            for moment, value in each.points
        ]
        if places:
            parts.append(f'<path d="M{"L".join(places)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        across = left + (number % _LEGEND) * (width - left) // _LEGEND
        down = bottom + 36 + 16 * (number // _LEGEND)
        parts.append(f'<text x="{across}" y="{down}" fill="{colour}">— {html.escape(each.label)}</text>')
    return "".join([*parts, "</svg>"])


def _amount(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.0f} %"
    if unit == "bytes":
        return f"{value / (1 << 30):.1f} GiB"
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
    return f"{value:.3g}" + ("/s" if unit == "reqps" else "")


if __name__ == "__main__":
    main()
