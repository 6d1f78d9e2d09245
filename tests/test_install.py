"""install.py, as the Makefile calls it: progress while it works, pip's own words if it fails."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import install
from tests.support.terminal import COLOUR, on_terminal

ROOT = Path(__file__).parent.parent


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    return path


def require(wheel: Path, digest: str = "") -> Path:
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    requirements = wheel.parent / "requirements.txt"
    requirements.write_text(f"tiny==1.0 \\\n    --hash=sha256:{digest}\n")
    return requirements


def alone(folder: Path) -> dict[str, str]:
    """An environment in which pip asks nobody."""
    return {
        "PATH": os.environ["PATH"], "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip


def run(wheel: Path, digest: str = "") -> "subprocess.CompletedProcess[str]":
    environment = alone(wheel.parent) | {"PIP_TARGET": f"{wheel.parent}/installed"}
    command = [sys.executable, str(ROOT / "install.py"), str(require(wheel, digest))]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_it_says_what_it_installs_and_how_far_it_is(wheel: Path) -> None:
    result = run(wheel)
    assert result.returncode == 0, result.stderr
    first, *_, before_last, last = result.stdout.splitlines()
    assert first.startswith("Installing 1 package of")
    assert before_last == "  1/1 unpacking them"
    assert last.startswith("  done after ")
    assert (wheel.parent / "installed" / "tiny.py").exists()


@pytest.mark.slow
def test_a_failure_shows_what_pip_said(wheel: Path) -> None:
    result = run(wheel, "0" * 64)
    assert result.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in result.stderr


@pytest.mark.slow
def test_make_run_installs_in_colour_on_a_terminal_only(wheel: Path) -> None:
    """The Makefile and install.py as they are, with a tiny requirement and a manage.py that only says its name."""
    folder, command, environment = wheel.parent, ["make", "run"], alone(wheel.parent)
    for name in ("Makefile", "install.py"):
        shutil.copy(ROOT / name, folder)
    (folder / "manage.py").write_text("import sys; print('manage.py', *sys.argv[1:])\n")
    colour = "\033[36m1/1\033[0m"
    require(wheel)
    shown = on_terminal(command, folder, environment)
    assert f"{colour} tiny" in shown
    assert "manage.py up" in shown
    os.utime(folder / "requirements.txt")
    shown = on_terminal(command, folder, environment | {"NO_COLOR": "1"})
    assert "  1/1 tiny" in shown
    assert COLOUR not in shown.replace("\033[K", "")
    os.utime(folder / "requirements.txt")
    piped = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
    assert "done after" in piped
    assert COLOUR not in piped


def test_packages_are_counted_wherever_they_come_from() -> None:
    lines = [
        "Ignoring async-timeout: markers 'x' don't match your environment",
        "Collecting aiohttp==3.14.5 (from -r requirements.txt (line 4))",
        "  Downloading aiohttp-3.14.5-cp311.whl (1.9 MB)",
        "Processing /wheels/django_rq-4.2.0-py3-none-any.whl (from -r requirements.txt (line 9))",
        "Requirement already satisfied: redis==8.1.0 in ./lib",
        "Installing collected packages: aiohttp, django-rq",
    ]
    assert list(install._steps(lines, 5, [])) == [
        (1, "async-timeout"), (2, "aiohttp"), (3, "django_rq"), (4, "redis"), (5, "unpacking them")
    ]  # fmt: skip
