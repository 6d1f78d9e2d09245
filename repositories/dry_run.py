"""What a watch would send, before there is one.

A worker counts: only workers touch clones. The question travels to it encrypted, for it has the app's token in
it; the answer waits in Redis for a while, under a name that only the same app's same question leads to.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from django.conf import settings

from repositories import clones, long_poll, queue
from repositories.crypto import decrypt, encrypt
from repositories.errors import GitFailed
from repositories.models import App
from repositories.remotes import RemoteUrl
from repositories.selection import Selection

PATIENCE = 20.0
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

    def seal(self) -> str:
        return encrypt(json.dumps(asdict(self)))

    @classmethod
    def unseal(cls, sealed: str) -> Self:
        facts = json.loads(decrypt(sealed))
        chosen = facts.pop("selection")
        selection = Selection(
            include=tuple(chosen["include"]),
            exclude=tuple(chosen["exclude"]),
            max_file_size=chosen["max_file_size"],
        )
        return cls(**facts, selection=selection)

    @property
    def remote(self) -> clones.Remote:
        return clones.Remote(url=RemoteUrl.parse(self.url), token=self.token)

    @property
    def name(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


def estimate(app: App, url: str, *, token: str, ref: str, selection: Selection) -> Estimate | None:
    """None: it is still being counted; ask again."""
    question = Question(app_id=app.pk, url=url, token=token, ref=ref, selection=selection)
    clones.look(question.remote, ref)
    if found := _found(question):
        return found
    queue.enqueue(
        queue.SNAPSHOTS,
        "snapshots.jobs.measure",
        question.seal(),
        job_id=f"measure-{question.name}",
        timeout=2 * settings.GIT_TIMEOUT,
    )
    long_poll.wait_until(lambda: queue.connection().exists(_key(question)) > 0, seconds=PATIENCE)
    return _found(question)


def answer(question: Question, result: Estimate | str) -> None:
    """What was counted, or why it could not be."""
    facts: dict[str, Any] = {"error": result} if isinstance(result, str) else asdict(result)
    queue.connection().set(_key(question), json.dumps(facts), ex=_KEPT_SECONDS)


def _found(question: Question) -> Estimate | None:
    text = queue.connection().get(_key(question))
    if text is None:
        return None
    facts = json.loads(text)
    if "error" in facts:
        queue.connection().delete(_key(question))
        raise GitFailed(facts["error"])
    return Estimate(**facts)


def _key(question: Question) -> str:
    return f"docora:dry-run:{question.name}"
