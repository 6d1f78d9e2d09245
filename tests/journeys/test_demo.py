"""`manage.py demo` tells its story by itself and leaves nothing behind."""

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import warm_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Demo:
    """A demo with a folder for temporary files of its own, which also marks its processes."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.output = folder.parent / "output.txt"
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment = inherited | {"TMPDIR": str(folder), "DOCORA_DATA_DIR": str(folder.parent / "data")}
        with self.output.open("w") as output, Path(os.devnull).open() as nothing:
            self.process = warm_python.start(
                "demo", *options, environment=environment, stdin=nothing, stdout=output, stderr=output
            )

    def text(self) -> str:
        return self.output.read_text()

    def end(self) -> int:
        return self.process.wait(timeout=240)

    def wait_for(self, words: str) -> None:
        while words not in self.text():
            assert self.process.poll() is None, self.text()
            time.sleep(0.05)

    def traces(self) -> list[str]:
        """Files and processes that are still there."""
        marked = f"TMPDIR={self.folder}\0".encode()
        left = [process.name for process in Path("/proc").glob("[0-9]*") if marked in _environment(process)]
        return [*left, *map(str, self.folder.iterdir())]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # it has just ended, or belongs to somebody else
        return b""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, unlike tmp_path: the demo has a unix socket in it."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "temporary"
        folder.mkdir()
        yield folder


def test_it_tells_the_whole_story_and_leaves_nothing_behind(folder: Path) -> None:
    demo = Demo(folder)
    assert demo.end() == 0, demo.text()
    story = demo.text()
    assert "\x1b" not in story
    for app in ("Search", "Wiki"):
        assert re.search(rf"{app} .*62/62 files", story)
        told = re.findall(rf"{app} +(create|update|delete) +(\S+)", story)
        assert told[:4] == [
            ("delete", "docs/page-01.md"),
            ("delete", "docs/page-02.md"),
            ("create", "docs/welcome.md"),
            ("update", "README.md"),
        ]
    complete = re.findall(r"(\w+) +sync_complete  (\d+) files, and the digest [0-9a-f]{12}… is that of its own", story)
    assert complete[:2] == [("Search", "62"), ("Wiki", "62")]
    assert sorted(complete[2:]) == [("Search", "61"), ("Search", "62"), ("Wiki", "61")]
    assert "fetched once for both apps" in story
    assert "Search  create  docs/news.md" in story
    assert "Wiki    nothing" in story
    assert "clones on disk after:  none" in story
    assert "Done in" in story
    assert demo.traces() == []


@pytest.mark.parametrize("moment", ["2. Docora starts", "4. Both apps", "6. Somebody pushes"])
def test_an_interrupt_at_any_moment_leaves_nothing_behind(folder: Path, moment: str) -> None:
    demo = Demo(folder)
    demo.wait_for(moment)
    assert demo.traces()
    demo.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    demo.process.send_signal(signal.SIGINT)  # an impatient person presses it twice
    assert demo.end() == 130, demo.text()
    assert demo.traces() == []


def test_what_does_not_arrive_in_time_is_named(folder: Path) -> None:
    demo = Demo(folder, "--patience", "0.1")
    assert demo.end() == 1
    assert demo.text().splitlines()[-1] == "The demo failed: Docora was not ready within 0.1 s"
    assert demo.traces() == []
