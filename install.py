"""Install locked requirements with pip, and show how far it is: `python install.py FILE`.

For the Makefile; needs nothing but Python. On a terminal one line counts the packages; elsewhere a line is printed now
and then. What pip says is shown only if it fails.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_SECONDS_BETWEEN_LINES = 5
# "Processing" is a file that is on this machine already.
_PACKAGE = re.compile(
    r"(?:Collecting|Ignoring|Requirement already satisfied:|Processing \S*/)\s*([\w.]+(?:-[a-zA-Z][\w.]*)*)"
)


def main(file: str) -> int:
    total = len(re.findall(r"^[\w.-]+==", Path(file).read_text(), re.M))
    command = [sys.executable, "-m", "pip", "install", "--require-hashes", "--progress-bar", "off", "-r", file]
    said: list[str] = []
    print(f"Installing {total} package{'s' * (total != 1)} of {file} into {sys.prefix}", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        _show(f"/{total}", _steps(pip.stdout or (), total, said))
    if pip.returncode:
        sys.stderr.writelines(said)
    return pip.returncode


def _steps(lines: Iterable[str], total: int, said: list[str]) -> Iterator[tuple[int, str]]:
    """How many packages pip has come to, and which one it is."""
    count = 0
    for line in lines:
        said.append(line)
        if found := _PACKAGE.match(line):
            count = min(count + 1, total)
            yield count, found[1]
        elif line.startswith("Installing collected packages"):
            yield total, "unpacking them"


def _show(of_total: str, steps: Iterable[tuple[int, str]]) -> None:
    started = shown = time.monotonic()
    colour, plain = ("", "") if os.environ.get("NO_COLOR") else ("\033[36m", "\033[0m")
    for count, name in steps:
        if sys.stdout.isatty():
            sys.stdout.write(f"\r\033[K  {colour}{count}{of_total}{plain} {name}")
            sys.stdout.flush()
        elif time.monotonic() - shown > _SECONDS_BETWEEN_LINES or name == "unpacking them":
            shown = time.monotonic()
            print(f"  {count}{of_total} {name}", flush=True)
    end = "\r\033[K" if sys.stdout.isatty() else ""
    print(f"{end}  done after {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
