"""The alerts, the dashboard, the runbook and the list of metrics: none of them names what there is not."""

import json
import re
from pathlib import Path

import pytest
import yaml
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from repositories.base import disks, pulse, queue
from tests.support.metrics import TOKEN, needs_promtool, promtool

ROOT = Path(__file__).parent.parent
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "docora.json").read_text())
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@pytest.fixture
def exposed(transactional_db: None, client: Client, settings: Settings, tmp_path: Path) -> dict[str, set[str]]:
    """Every sample that /metrics shows, with its labels."""
    settings.METRICS_TOKEN = TOKEN
    settings.REPOS_BASE_PATH = tmp_path
    disks.note(queue.connection())
    pulse.note_tick()
    text = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*targets, *(rule["expr"] for rule in RULES)]


@pytest.mark.any_database
def test_alerts_and_dashboard_ask_for_metrics_that_there_are(exposed: dict[str, set[str]]) -> None:
    asked = {name for expression in expressions() for name in re.findall(r"\bdocora_\w+", expression)}
    assert asked
    assert asked <= set(exposed)


@pytest.mark.any_database
def test_the_page_of_metrics_lists_all_of_them_with_their_labels(exposed: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| `(docora_\w+)` \| ([\w, ]+) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    documented = {name: set() if labels == "none" else set(labels.split(", ")) for name, labels in rows}
    shown: dict[str, set[str]] = {}
    for name, labels in exposed.items():
        family = re.sub(r"(?<=_seconds)_(bucket|count|sum)$", "", name)
        shown.setdefault(family, set()).update(labels - {"le"})
    assert documented == shown


def test_each_alert_has_a_paragraph_in_the_runbook_and_names_it() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_each_paragraph_says_what_it_means_what_to_look_at_and_what_to_do() -> None:
    paragraphs = re.split(r"^## \w+$", (ROOT / "docs" / "runbook.md").read_text(), flags=re.MULTILINE)[1:]
    for paragraph in paragraphs:
        assert [word for word in ("**Means:**", "**Look at:**", "**Do:**") if word not in paragraph] == []


def test_each_alert_is_seen_firing_by_a_test_of_its_rule() -> None:
    tested = (ALERTS.parent / "alerts.test.yml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', tested)) == {rule["alert"] for rule in RULES}


@needs_promtool
def test_promtool_accepts_the_configuration_and_the_alerts_fire_when_they_should(tmp_path: Path) -> None:
    for path in ALERTS.parent.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "docora-metrics-token").write_text(TOKEN)
    assert f"{len(RULES)} rules found" in promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "alerts.test.yml"))


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
