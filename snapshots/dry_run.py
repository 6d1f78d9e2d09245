"""What a watch would send, before there is one.

A worker counts: only workers touch clones. The question travels to it encrypted, because it contains the app's token.
The answer waits in Redis for a while, under a key that only the same question of the same app leads to.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from django.conf import settings

from repositories import github_app, messages
from repositories.base import queue
from repositories.base.crypto import decrypt, encrypt
from repositories.errors import GitError
from repositories.git import clones, trees
from repositories.git.clones import Tip
from repositories.git.urls import RemoteUrl
from repositories.models import App, Repository
from repositories.repo_lock import repo_lock
from repositories.selection import Selection
from snapshots import ignore, manifest
from snapshots.packed import Packed
from snapshots.paths import GitPath

_KEPT_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    commit_sha: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    app_id: int
    url: str
    token: str
    ref: str
    selection: Selection

    @classmethod
    def of(cls, app: App, url: str, *, token: str, ref: str, selection: Selection) -> Self:
        token = token or github_app.token_for(app, RemoteUrl.parse(url))
        return cls(app_id=app.pk, url=url, token=token, ref=ref, selection=selection)

    def seal(self) -> str:
        return encrypt(json.dumps(asdict(self)))

    @classmethod
    def unseal(cls, sealed: str) -> Self:
        facts = json.loads(decrypt(sealed))
        return cls(**facts | {"selection": Selection.from_json(facts["selection"])})

    @property
    def remote(self) -> clones.Remote:
        return clones.Remote(url=RemoteUrl.parse(self.url), token=self.token)

    @property
    def name(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def key(self) -> str:
        return f"docora:dry-run:{self.name}"


def ask(question: Question) -> None:
    """Check that the token may read the repository, and let a worker count unless the answer is there already."""
    clones.look(question.remote, question.ref)
    if not is_answered(question):
        messages.measure(question.seal(), name=question.name)


def is_under_way(question: Question) -> bool:
    """Whether it was asked before, and a worker has answered or will do so."""
    return is_answered(question) or queue.is_alive(messages.measure_job(question.name))


def is_answered(question: Question) -> bool:
    return bool(queue.connection().exists(question.key))


def answer_to(question: Question) -> Estimate | None:
    """None: it is still being counted. An error is told once, so that the next question counts again."""
    text = queue.connection().get(question.key)
    if text is None:
        return None
    facts = json.loads(text)
    if "error" in facts:
        queue.connection().delete(question.key)
        raise GitError(facts["error"])
    return Estimate(**facts)


def measure(question: Question, *, job_id: str) -> None:
    """Count in a worker: from the manifest where there is one, else from a clone that is thrown away."""
    facts: dict[str, Any]
    try:
        tip = clones.look(question.remote, question.ref)
        facts = asdict(_count(question, tip, job_id) if tip else Estimate(commit_sha="", files=0, bytes=0))
    except GitError as error:
        facts = {"error": str(error)}
    queue.connection().set(question.key, json.dumps(facts), ex=_KEPT_SECONDS)


def _count(question: Question, tip: Tip, job_id: str) -> Estimate:
    clone_key = question.remote.url.clone_key
    known = Repository.objects.filter(clone_key=clone_key, ref=question.ref, commit_sha=tip.sha).first()
    if known:
        files = manifest.contents_at(known.pk, known.sequence).values_list("file__path", "size")
        return _estimate(question, tip.sha, files.iterator())
    # A clone of its own: the shared one's lock is for the apps that watch.
    scratch = f"@dry-run/{question.name}"
    with repo_lock(scratch, job_id=job_id) as held:
        try:
            clones.refresh(scratch, question.remote, tip, held=held)
            return _estimate(question, tip.sha, _in_clone(scratch, tip.sha))
        finally:
            if trash := clones.discard(scratch, held=held):
                clones.empty(trash)


def _estimate(question: Question, commit: str, files: Iterable[tuple[str, int]]) -> Estimate:
    sizes = [size for path, size in files if size <= settings.MAX_FILE_BYTES and question.selection.takes(path, size)]
    return Estimate(commit_sha=commit, files=len(sizes), bytes=sum(sizes))


class _Shown(NamedTuple):
    path: str
    blob: str


def _in_clone(clone_key: str, commit: str) -> Iterator[tuple[str, int]]:
    with clones.open_blobs(clone_key) as blobs:
        rules = ignore.rules_at(commit, blobs)
        files = (entry for entry in trees.files(blobs, commit) if entry.mode != trees.SUBMODULE)
        shown = (_Shown(GitPath(entry.path).text, entry.blob) for entry in files if not rules.hide(entry.path))
        for batch in Packed(_Shown._make, shown):
            sizes = dict(blobs.sizes({file.blob for file in batch}))
            yield from ((file.path, sizes[file.blob]) for file in batch)
