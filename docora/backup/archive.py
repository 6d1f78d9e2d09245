"""The file of a backup: a tar of `backup.json`, which says what it is, and `database`, the copy itself.

It is written under another name, read back, and renamed: what has the name that was asked for is whole.
"""

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from docora.backup import BackupError, ExistsAlready

_FACTS = "backup.json"
_COPY = "database"
_FORMAT = 1
_PIECE = 1 << 20
# The copy of SQLite shrinks to a fraction at the fastest level; that of pg_dump is compressed already.
_COMPRESSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a backup is, without its contents."""

    engine: str
    version: str
    """The version of Docora."""
    made_at: str
    migrations: list[str]
    """Those that were applied, as `app.name`."""
    keys: list[str]
    """Fingerprints of the encryption keys in use, the newest first."""
    sha256: str = ""
    """The digest of the copy."""
    format: int = _FORMAT


def write(file: Path, facts: Facts, copy: Path) -> None:
    """The file is readable by its owner alone, overwrites nothing, and is read back before it gets its name."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # mode 0600
    draft = Path(name)
    try:
        complete = Facts(**{**asdict(facts), "sha256": _digest_of(copy)})
        with os.fdopen(handle, "wb") as target:
            _write_tar(target, complete, copy)
            target.flush()
            os.fsync(target.fileno())
        with unpacked(draft) as (found, _):
            if found != complete:
                raise BackupError(f"{file} could not be read back as it was written")
        os.link(draft, file)  # not a rename: that would overwrite a file that came meanwhile
    except FileExistsError:
        raise ExistsAlready(file) from None
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def unpacked(file: Path, folder: Path | None = None) -> Iterator[tuple[Facts, Path]]:
    """What the backup says about itself, and the copy of the database, checked, in a file that goes with the block."""
    with tempfile.TemporaryDirectory(dir=folder or file.parent, prefix=".docora-restore-") as place:
        copy = Path(place) / "database"
        try:
            with tarfile.open(file, "r:*") as tar:
                facts = _facts_in(tar)
                with copy.open("wb") as target:
                    digest = _copy(_member(tar, _COPY), target)
        except FileNotFoundError:
            raise BackupError(f"{file} does not exist") from None
        except (tarfile.TarError, EOFError, KeyError, TypeError, ValueError, OSError) as error:
            raise BackupError(f"{file} is not a whole backup of Docora: {error}") from None
        if digest != facts.sha256:
            raise BackupError(f"{file} is damaged: its SHA-256 is not the one that it was written with")
        yield facts, copy


def _write_tar(target: IO[bytes], facts: Facts, copy: Path) -> None:
    text = json.dumps(asdict(facts), indent=2).encode()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=_COMPRESSION) as tar:
        tar.addfile(_entry(_FACTS, len(text)), BytesIO(text))
        with copy.open("rb") as source:
            tar.addfile(_entry(_COPY, copy.stat().st_size), source)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


def _facts_in(tar: tarfile.TarFile) -> Facts:
    values = json.loads(_member(tar, _FACTS).read())
    if values["format"] != _FORMAT:
        raise ValueError(f"its format is {values['format']!r}, which this version does not know")
    return Facts(**values)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    """Read by name, not extracted: paths and links in the tar have no effect."""
    found = tar.extractfile(name)
    if found is None:
        raise ValueError(f"{name} is not a file in it")
    return found


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := source.read(_PIECE):
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()
