"""What /metrics says, read as Prometheus reads it."""

import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

TOKEN = "only-prometheus-knows-this"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


class Sampled:
    """`sampled["docora_looks_total", "via=git", "outcome=failed"]`; the order of the labels does not matter."""

    def __init__(self, text: str) -> None:
        self._samples = {
            (sample.name, *sorted(f"{name}={value}" for name, value in sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __getitem__(self, name_and_labels: str | tuple[str, ...]) -> float:
        name, *labels = [name_and_labels] if isinstance(name_and_labels, str) else name_and_labels
        return self._samples[(name, *sorted(labels))]

    @property
    def names(self) -> set[str]:
        return {name for name, *_ in self._samples}

    def __len__(self) -> int:
        return len(self._samples)


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bdocora_\w+", expression))


def promtool(*words: str, given: str | None = None) -> str:
    """What it says when it finds nothing wrong."""
    result = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
