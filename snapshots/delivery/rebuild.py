"""What an attempt sent, for the person who looks at it. Bodies are not kept: the code that sends builds them again."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from repositories.errors import DocoraError
from repositories.git import clones
from snapshots.changes import Change, Event
from snapshots.delivery import signing
from snapshots.delivery.payloads import Bodies, count_pieces
from snapshots.models import Delivery, File, FileVersion, Snapshot
from snapshots.paths import GitPath

_SHOWN = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The body as far as it can be had, and what is missing of it."""

    text: str = ""
    missing: str = ""


def headers_of(delivery: Delivery) -> list[tuple[str, str]]:
    """The signatures are not kept. The times are of the signing, which comes right after the body is made."""
    app, moment = delivery.watch.app, str(int((delivery.sent_at or delivery.attempted_at).timestamp()))
    signature = "… (not kept)"
    headers = signing.headers_of(app.public_id, delivery.message_id, moment, own=signature, standard=[signature])
    return [("POST", f"{app.base_url}/{delivery.event}"), *headers.items()]


def body_of(delivery: Delivery) -> Rebuilt:
    if not delivery.path:
        return Rebuilt(missing="This was a notice, not a file. Notices are not kept.")
    file = _file(delivery)
    version = _version(delivery, file) if file else None
    if file is None or (version is None and delivery.event != Event.DELETE):
        return Rebuilt(missing="Docora does not know this content any more.")
    change = Change(
        event=Event(delivery.event),
        file_id=file.pk,
        path=file.git_path,
        sha256=bytes.fromhex(delivery.sha256),
        since=version.since if version else 0,
        blob=version.blob if version else "",
        size=version.size if version else 0,
        previous=bytes(delivery.previous or b"") or (_previous(version) if version else b""),
    )
    try:
        body = _build(delivery, change)
    except (DocoraError, OSError) as error:
        reason = f"The content is not in the clone any more, or the clone is not on this host: {error}"
        return Rebuilt(missing=reason)
    if body is None:
        return Rebuilt(missing="It was sent when other sizes were set for files in pieces.")
    cut = f"Only the first {_SHOWN // 1024} KB of {len(body):,} bytes are shown." if len(body) > _SHOWN else ""
    return Rebuilt(text=body[:_SHOWN].decode(errors="ignore"), missing=cut)


def _build(delivery: Delivery, change: Change) -> bytes | None:
    """Byte for byte, of a file that went in pieces the piece that was sent."""
    at, transfer = delivery.sent_at or delivery.attempted_at, delivery.transfer or "(not kept)"
    bodies = Bodies(delivery.watch.repository, _snapshot(delivery), at=at, transfer=transfer)
    if change.event is Event.DELETE:
        return next(bodies.of(change, ())).content
    with clones.open_blobs(delivery.watch.repository.clone_key) as blobs:
        content: Iterator[bytes] = next(blobs.contents([change.blob]))
        body = next(islice(bodies.of(change, content), max(0, delivery.piece - 1), None), None)
    pieces = count_pieces(change.size) if body and body.transfer else 0
    return body.content if body and pieces == delivery.pieces else None


def _snapshot(delivery: Delivery) -> Snapshot:
    """The newest of its commit before the attempt; without branch and times if it is not known any more."""
    taken = Snapshot.objects.filter(repository=delivery.watch.repository_id, commit_sha=delivery.commit_sha)
    found = taken.filter(taken_at__lte=delivery.attempted_at).order_by("sequence").last()
    return found or Snapshot(commit_sha=delivery.commit_sha, taken_at=delivery.attempted_at)


def _file(delivery: Delivery) -> File | None:
    """Found by the digest of the path, which has an index; the text of a path has none."""
    digests = [path.digest for path in GitPath.all_shown_as(delivery.path)]
    candidates = File.objects.filter(repository=delivery.watch.repository_id, path_digest__in=digests)
    return next((file for file in candidates if file.path == delivery.path), None)


def _version(delivery: Delivery, file: File) -> FileVersion | None:
    versions = FileVersion.objects.filter(file=file, sha256=bytes.fromhex(delivery.sha256))
    return versions.order_by("-since").first()


def _previous(version: FileVersion) -> bytes:
    """The content before this one, as the manifest has it: of attempts from before Docora kept what was sent."""
    before = FileVersion.objects.filter(file=version.file_id, until=version.since).first()
    return bytes(before.sha256) if before else b""
