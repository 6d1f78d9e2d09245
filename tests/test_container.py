"""What the image and the units promise, as far as files can tell; `deploy/check` builds and runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import docora
from docora import health_probe
from docora.processes import preflight
from tests.support.service import Service, free_port

ROOT = Path(__file__).parent.parent


def test_the_image_has_the_version_of_the_code_and_requirements_with_hashes() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert f"ARG VERSION={docora.__version__}\n" in text
    assert "--require-hashes" in text
    assert re.search(r"^USER docora$", text, re.MULTILINE)


def test_the_context_of_the_build_has_no_data_and_no_keys() -> None:
    first, *kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert first == "*"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for line in copied for name in line.split()} == {line[1:] for line in kept if line.startswith("!")}


def test_each_role_has_a_unit_and_the_target_wants_it() -> None:
    folder = ROOT / "deploy" / "systemd"
    wanted = set(re.findall(r"docora[\w-]*(?:@|\.service)", (folder / "docora.target").read_text()))
    roles = {path.name.removesuffix(".service") if "@" in path.name else path.name for path in folder.glob("*.service")}
    assert wanted == roles - {"docora.service", "docora-migrate.service"}


@pytest.mark.slow
@pytest.mark.any_database
def test_the_probe_follows_the_web_server_on_every_address() -> None:
    service = Service(DOCORA_BIND="0.0.0.0", DJANGO_ALLOWED_HOSTS="docora.example.com", DOCORA_SECURE="true")
    probe = [sys.executable, "-m", health_probe.__name__]
    try:
        assert subprocess.run(probe, env=service.environment, cwd=ROOT, check=False).returncode == 1
        service.start()
        assert subprocess.run(probe, env=service.environment, cwd=ROOT, check=False).returncode == 0
    finally:
        service.close()


def test_an_address_that_this_machine_does_not_have_is_named() -> None:
    with pytest.raises(preflight.StartError, match="DOCORA_BIND"):
        preflight.listen("192.0.2.1", free_port())


def test_it_listens_on_ipv6_too() -> None:
    with preflight.listen("::1", port := free_port()) as listener:
        assert listener.getsockname()[:2] == ("::1", port)
