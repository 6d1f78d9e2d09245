"""Many rows at once, on both databases."""

import pytest
from django.db import IntegrityError, transaction

from repositories.models import Repository
from snapshots import rows
from snapshots.models import File

pytestmark = pytest.mark.django_db
AWKWARD = ["NULL", "", 'a"quote', "it's", "back\\slash", "{a,b}", "new\nline", "100% %s", "ä → 🙂"]


def test_every_text_and_every_byte_arrives_as_it_was_given() -> None:
    repository = Repository.objects.create(url="https://example.com/a", name="a", clone_key="a")
    paths: list[tuple[str, bytes | None]] = [*((text, None) for text in AWKWARD), ("raw", bytes(range(256)))]
    given = [(repository.pk, bytes([number] * 32), *path) for number, path in enumerate(paths)]
    rows.insert(File, ("repository", "path_digest", "path", "raw_path"), given)
    found = File.objects.order_by("pk").values_list("repository", "path_digest", "path", "raw_path")
    assert [(pk, bytes(digest), path, raw and bytes(raw)) for pk, digest, path, raw in found] == given


def test_a_row_that_is_there_is_overwritten_where_that_is_asked_for() -> None:
    repository = Repository.objects.create(url="https://example.com/a", name="a", clone_key="a")
    columns = ("repository", "path_digest", "path", "raw_path")
    for path in ("old", "new"):
        one = [(repository.pk, b"one", path, None)]
        rows.insert(File, columns, one, instead_of=("repository", "path_digest"))
    assert File.objects.get().path == "new"


def test_a_row_that_is_there_is_an_error_where_it_is_not_to_be_overwritten() -> None:
    repository = Repository.objects.create(url="https://example.com/a", name="a", clone_key="a")
    one = [(repository.pk, b"one", "path", None)]
    rows.insert(File, ("repository", "path_digest", "path", "raw_path"), one)
    with pytest.raises(IntegrityError), transaction.atomic():
        rows.insert(File, ("repository", "path_digest", "path", "raw_path"), one)


def test_no_row_has_or_gets_an_id_that_was_taken_for_another() -> None:
    repository = Repository.objects.create(url="https://example.com/a", name="a", clone_key="a")

    def add(digest: bytes) -> int:
        return File.objects.create(repository=repository, path_digest=digest, path="path").pk

    gone = add(b"gone")
    File.objects.filter(pk=gone).delete()
    ids = rows.new_ids(File, 3)
    assert len(set(ids)) == 3
    assert min(ids) > gone
    columns = ("id", "repository", "path_digest", "path", "raw_path")
    rows.insert(File, columns, [(pk, repository.pk, bytes([pk % 256]), "path", None) for pk in ids])
    assert add(b"next") > max(ids)
