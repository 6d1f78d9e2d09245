"""What an attempt sent: bodies are not kept, so they are rebuilt from git for who looks at one."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from repositories.errors import DocoraError
from repositories.git import clones
from snapshots.delivery.payloads import describe, iso
from snapshots.models import Delivery, FileVersion

_SHOWN = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The body as far as it can be had, and what is missing of it."""

    text: str = ""
    missing: str = ""


def headers_of(delivery: Delivery) -> list[tuple[str, str]]:
    """The signatures are not kept; the times are those of the attempt, to the second."""
    app, moment = delivery.watch.app, str(int(delivery.attempted_at.timestamp()))
    return [
        ("POST", f"{app.base_url}/{delivery.event}"),
        ("Content-Type", "application/json"),
        ("X-Docora-App-Id", app.public_id),
        ("X-Docora-Timestamp", moment),
        ("X-Docora-Signature", "sha256=… (not kept)"),
        ("webhook-id", delivery.message_id),
        ("webhook-timestamp", moment),
        ("webhook-signature", "v1,… (not kept)"),
    ]


def rebuilt(delivery: Delivery) -> Rebuilt:
    if not delivery.path:
        return Rebuilt(missing="This was a notice, not a file. Notices are not kept.")
    file: dict[str, object] = {"path": delivery.path, "sha": delivery.sha256}
    if delivery.event == "delete":
        return Rebuilt(text=_body(delivery, file))
    version = _version(delivery)
    if version is None:
        return Rebuilt(text=_body(delivery, file), missing="Docora does not know this content any more.")
    file["size"] = version.size
    try:
        file["content"], cut = _content(delivery.watch.repository.clone_key, version)
    except (DocoraError, OSError) as error:
        missing = f"The content is not in the clone any more, or the clone is not on this host: {error}"
        return Rebuilt(text=_body(delivery, file), missing=missing)
    return Rebuilt(text=_body(delivery, file), missing=cut)


def _version(delivery: Delivery) -> FileVersion | None:
    repository = delivery.watch.repository_id
    versions = FileVersion.objects.filter(repository=repository, file__repository=repository, file__path=delivery.path)
    return versions.filter(sha256=bytes.fromhex(delivery.sha256)).order_by("-since").first()


def _content(clone_key: str, version: FileVersion) -> tuple[str, str]:
    """The beginning of the content as text, and a word on what is not shown of it."""
    with clones.open_blobs(clone_key) as blobs:
        beginning = b"".join(_beginning(next(blobs.contents([version.blob]))))
    cut = f"Only the first {_SHOWN // 1024} KB of {version.size:,} bytes are shown." if version.size > _SHOWN else ""
    if b"\0" in beginning:
        return "…", f"The content is binary, {version.size:,} bytes; it was sent as base64."
    return beginning.decode(errors="replace"), cut


def _beginning(pieces: Iterator[bytes]) -> Iterator[bytes]:
    left = _SHOWN
    for piece in pieces:
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


def _body(delivery: Delivery, file: dict[str, object]) -> str:
    payload: dict[str, object] = {"repository": describe(delivery.watch.repository), "file": file}
    if delivery.event == "update":
        with suppress(LookupError):
            payload["previous_sha"] = _previous(delivery)
    payload |= {"commit_sha": delivery.commit_sha, "timestamp": iso(delivery.attempted_at)}
    return json.dumps(payload, ensure_ascii=False, indent=2)


def _previous(delivery: Delivery) -> str:
    """The content before this one, as the manifest has it."""
    version = _version(delivery)
    if version is None:
        raise LookupError
    before = FileVersion.objects.filter(file=version.file_id, until=version.since).first()
    if before is None:
        raise LookupError
    return bytes(before.sha256).hex()
