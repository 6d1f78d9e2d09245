"""Count what a watch would send: from the manifest where there is one, else from a clone that is thrown away."""

from collections.abc import Iterable, Iterator

from django.conf import settings

from repositories import clones, dry_run, trees
from repositories.clones import Tip
from repositories.dry_run import Estimate, Question
from repositories.errors import GitError
from repositories.models import Repository
from repositories.repo_lock import repo_lock
from snapshots import ignore, manifest
from snapshots.paths import GitPath


def measure(question: Question, *, job_id: str) -> None:
    try:
        tip = clones.look(question.remote, question.ref)
        dry_run.answer(question, _count(question, tip, job_id) if tip else Estimate(commit_sha="", files=0, bytes=0))
    except GitError as error:
        dry_run.answer(question, str(error))


def _count(question: Question, tip: Tip, job_id: str) -> Estimate:
    clone_key = question.remote.url.clone_key
    known = Repository.objects.filter(clone_key=clone_key, ref=question.ref, commit_sha=tip.sha).first()
    if known:
        return _estimate(question, tip.sha, _in_manifest(known))
    # A clone of its own: the shared one's lock is for those who watch.
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


def _in_manifest(repository: Repository) -> Iterator[tuple[str, int]]:
    yield from manifest.contents_at(repository.pk, repository.sequence).values_list("file__path", "size").iterator()


def _in_clone(clone_key: str, commit: str) -> Iterator[tuple[str, int]]:
    with clones.open_blobs(clone_key) as blobs:
        rules = ignore.rules_at(commit, blobs)
        files = [entry for entry in trees.files(blobs, commit) if entry.mode != trees.SUBMODULE]
        shown = [entry for entry in files if not rules.hide(entry.path)]
        sizes = dict(blobs.sizes({entry.blob for entry in shown}))
    for entry in shown:
        yield GitPath(entry.path).text, sizes[entry.blob]
