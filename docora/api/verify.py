"""Does the app have what Docora says that it has? By one number, or file by file."""

import base64
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from django.conf import settings
from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.errors import ValidationError
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from docora.api.auth import app_of
from docora.api.reading import readable_watch
from docora.api.schemas import REFUSED, REMOTE, Problem
from docora.api.unknown_fields import reads_body, refusal_of
from docora.limits import seats
from repositories.errors import Busy
from repositories.models import Watch
from repositories.watches import watch_of
from snapshots import verification
from snapshots.paths import GitPath

router = Router(tags=["repositories"])

MOST_FILES = 100_000
_MOST_NAMED = 1000
_KEYS = {"digest", "files", "partial"}
_HASH = re.compile("^[0-9a-f]{64}$")
# A list is parsed as a whole. One at a time in each web process keeps the memory for it bounded.
_one_list = threading.BoundedSemaphore(1)


class NamedPath(Schema):
    path: str
    path_base64: str | None = None

    @classmethod
    def of(cls, raw: bytes) -> "NamedPath":
        path = GitPath(raw)
        return cls(path=path.text, path_base64=path.exact)


class Counts(Schema):
    missing: int
    different: int
    extra: int
    pending: int
    unknown: int


class Verdict(Schema):
    equal: bool
    commit_sha: str | None = Field(description="The commit that the app had all of last.")
    files: int = Field(description="How many files the app has, as Docora knows it.")
    digest: str = Field(description="The digest of these files.")
    counts: Counts | None = Field(None, description="After a list of files: how many paths are in each list below.")
    missing: list[NamedPath] | None = Field(None, description="Acknowledged, not in the list; sent again.")
    different: list[NamedPath] | None = Field(None, description="In the list with another hash; sent again.")
    extra: list[NamedPath] | None = Field(
        None, description="Deleted, or not chosen any more; the delete is sent again."
    )
    pending: list[NamedPath] | None = Field(None, description="Nothing is sent now: on its way, parked, or too large.")
    unknown: list[NamedPath] | None = Field(None, description="Docora never knew these; nothing is done about them.")

    @classmethod
    def of(cls, watch: Watch, *, equal: bool, **lists: Any) -> "Verdict":
        return cls(equal=equal, commit_sha=watch.synced_commit or None, files=watch.files, digest=watch.digest, **lists)


class VerifiedFile(BaseModel):
    path: str = ""
    path_base64: str | None = Field(None, description="Where the bytes are not UTF-8: the exact ones.")
    sha: str = Field(description="SHA-256 of the content.", pattern=_HASH.pattern)


class VerifyRequest(BaseModel):
    """Either a digest or a list of files. For the OpenAPI document alone: see `_parsed`."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"oneOf": [{"required": ["digest"]}, {"required": ["files"]}]}
    )
    digest: str = Field("", pattern=_HASH.pattern)
    files: list[VerifiedFile] = Field([], max_length=MOST_FILES)
    partial: bool = Field(False, description="The list has only some of the files.")


def schemas() -> dict[str, Any]:
    _, found = models_json_schema([(VerifyRequest, "validation")], ref_template="#/components/schemas/{model}")
    definitions: dict[str, Any] = found["$defs"]
    return definitions


_BODY = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/VerifyRequest"}}},
}


@router.post(
    "/repositories/{repository_id}/verify",
    response={200: Verdict, 403: Problem, 409: Problem, **REFUSED, **REMOTE},
    openapi_extra={"requestBody": _BODY},
)
@reads_body
def verify(request: HttpRequest, repository_id: str) -> Verdict:
    """Compare what the app has with what it acknowledged: by `digest`, or by a list of `files`.

    After a list, what is missing or different is sent again, and so are the deletes of files that the app should not
    have any more. Paths that Docora never knew are named, not deleted.
    """
    app = app_of(request)
    with seats.calling(app):
        body = request.read(settings.MAX_VERIFY_BODY_BYTES)
    with _seat_for(body):
        question = _parsed(body)
        if "digest" in question:
            watch = watch_of(app, repository_id)
            return Verdict.of(watch, equal=question["digest"] == watch.digest)
        claimed = _claimed(question["files"])
        watch = readable_watch(app, repository_id)
        found = verification.verify(watch, claimed, partial=question.get("partial", False))
    lists = {name: getattr(found, name) for name in Counts.model_fields}
    return Verdict.of(
        watch,
        equal=found.is_none,
        counts=Counts(**{name: len(paths) for name, paths in lists.items()}),
        **{name: [NamedPath.of(path) for path in paths[:_MOST_NAMED]] for name, paths in lists.items()},
    )


@contextmanager
def _seat_for(body: bytes) -> Iterator[None]:
    is_large = len(body) > settings.MAX_BODY_BYTES
    if is_large and not _one_list.acquire(blocking=False):
        raise Busy
    try:
        yield
    finally:
        if is_large:
            _one_list.release()


def _parsed(body: bytes) -> dict[str, Any]:
    """Checked by hand: a schema would make a model for each of 100,000 files, and double the memory."""
    try:
        question = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _malformed("this is not JSON") from None
    if not isinstance(question, dict):
        raise _malformed("an object with digest or files")
    if unknown := [("body", name) for name in question if name not in _KEYS]:
        raise refusal_of(unknown)
    if ("digest" in question) == ("files" in question):
        raise _malformed("either a digest or a list of files is compared")
    if "digest" in question and not _is_hash(question["digest"]):
        raise _malformed("64 hex digits, in lower case", "digest")
    if not isinstance(question.get("partial", False), bool):
        raise _malformed("true or false", "partial")
    return question


def _claimed(files: Any) -> dict[bytes, bytes]:
    if not isinstance(files, list) or len(files) > MOST_FILES:
        raise _malformed(f"a list of at most {MOST_FILES} files", "files")
    claimed: dict[bytes, bytes] = {}
    for number, file in enumerate(files):
        if not isinstance(file, dict) or not _is_hash(file.get("sha")):
            message = "an object with path or path_base64, and sha, which is 64 hex digits"
            raise _malformed(message, "files", number)
        claimed[_raw_path(file, number)] = bytes.fromhex(file["sha"])
    if len(claimed) < len(files):
        raise _malformed("a path is there twice", "files")
    return claimed


def _raw_path(file: dict[str, Any], number: int) -> bytes:
    exact, path = file.get("path_base64"), file.get("path")
    if exact is None and isinstance(path, str):
        return path.encode()
    try:
        return base64.b64decode(exact, validate=True)  # type: ignore[arg-type]  # TypeError where it is not text
    except (TypeError, ValueError):
        raise _malformed("path is text, or path_base64 the base64 of its bytes", "files", number) from None


def _malformed(message: str, *field: str | int) -> ValidationError:
    """In the form of the framework's own errors; without a field, of the body as a whole."""
    return ValidationError([{"loc": ("body", "body", *field), "msg": message}])


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and bool(_HASH.fullmatch(value))
