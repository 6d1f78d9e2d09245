"""What the database itself refuses, and what it keeps secret."""

import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from pytest_django import Settings

from repositories import accounts
from repositories.models import App, Repository, Watch
from snapshots.models import File, FileVersion
from snapshots.paths import GitPath

pytestmark = pytest.mark.django_db


@pytest.fixture
def app() -> App:
    credentials = accounts.onboard("Docs", "https://docs.example.com/hooks/", webhook_key="0123456789abcdef")
    return App.objects.get(public_id=credentials.app_id)


@pytest.fixture
def repository() -> Repository:
    return Repository.objects.create(url="https://github.com/a/b", owner="a", name="b", clone_key="a/b")


def stored(table: str, column: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM {table}")  # noqa: S608  names of the test's own
        return str(cursor.fetchone()[0])


def test_an_app_watches_a_repository_once(app: App, repository: Repository) -> None:
    Watch.objects.create(app=app, repository=repository)
    with pytest.raises(IntegrityError), transaction.atomic():
        Watch.objects.create(app=app, repository=repository)


def test_a_url_and_ref_exist_once_and_another_ref_shares_the_clone(repository: Repository) -> None:
    other = Repository.objects.create(url=repository.url, owner="a", name="b", clone_key="a/b", ref="next")
    assert other.clone_key == repository.clone_key
    with pytest.raises(IntegrityError), transaction.atomic():
        Repository.objects.create(url=repository.url, owner="A", name="B", clone_key="a/b")


def test_an_unknown_status_is_refused(app: App, repository: Repository) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Watch.objects.create(app=app, repository=repository, status="dreaming")


def test_tokens_and_keys_are_not_readable_in_the_database(app: App, repository: Repository) -> None:
    Watch.objects.create(app=app, repository=repository, token="ghp_secret")
    assert Watch.objects.get().token == "ghp_secret"
    assert "ghp_secret" not in stored("repositories_watch", "token")
    assert App.objects.get().webhook_key == "0123456789abcdef"
    assert "0123456789abcdef" not in stored("repositories_app", "webhook_key")


def test_a_bearer_token_is_stored_as_its_hash_alone() -> None:
    credentials = accounts.onboard("Docs", "https://docs.example.com")
    assert len(credentials.bearer_token) == len("docora_") + 64
    found = App.with_bearer(credentials.bearer_token)
    assert found
    assert found.public_id == credentials.app_id
    assert App.with_bearer(credentials.bearer_token[:-1] + "x") is None
    assert credentials.bearer_token[7:] not in stored("repositories_app", "bearer_hash")


def test_keys_rotate_while_old_texts_stay_readable(app: App, repository: Repository, settings: Settings) -> None:
    Watch.objects.create(app=app, repository=repository, token="ghp_secret")
    old, new = settings.ENCRYPTION_KEYS[0], Fernet.generate_key().decode()
    settings.ENCRYPTION_KEYS = [new, old]
    assert Watch.objects.get().token == "ghp_secret"
    call_command("rotate_encryption", verbosity=0)
    settings.ENCRYPTION_KEYS = [new]
    assert Watch.objects.get().token == "ghp_secret"
    assert App.objects.get().webhook_key == "0123456789abcdef"


@pytest.mark.parametrize("key", ["short", "x" * 501])
def test_a_webhook_key_has_16_to_500_characters(key: str) -> None:
    with pytest.raises(ValidationError, match="webhook_key"):
        accounts.onboard("Docs", "https://docs.example.com", webhook_key=key)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x.example",
        "x.example",
        "https://",
        "https://a:b@x.example",
        "https://:b@x.example",
        "https://@x.example",
        "https://x.example/?a=1",
        "https://[",
        "http://a b",
    ],
)
def test_a_base_url_is_plain_http(url: str) -> None:
    with pytest.raises(ValidationError, match="base_url"):
        accounts.onboard("Docs", url)


@pytest.mark.parametrize("raw", [b"a" * 4096, b"caf\xe9.txt", "naïve/文件.md".encode(), b"new\nline", b"\xff" * 5000])
def test_paths_of_any_length_and_bytes_are_kept_exactly(repository: Repository, raw: bytes) -> None:
    path = GitPath(raw)
    File.objects.create(
        repository=repository, path_digest=path.digest, path=path.text, raw_path=None if path.is_text else raw
    )
    assert File.objects.get().git_path == path
    with pytest.raises(IntegrityError), transaction.atomic():
        File.objects.create(repository=repository, path_digest=path.digest, path=path.text)


def test_a_file_has_one_current_version(repository: Repository) -> None:
    file = File.objects.create(repository=repository, path_digest=GitPath(b"a").digest, path="a")
    facts = {"repository": repository, "file": file, "blob": "0" * 40, "mode": "100644", "size": 1, "sha256": b"x"}
    FileVersion.objects.create(**facts, since=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        FileVersion.objects.create(**facts, since=2)
    with pytest.raises(IntegrityError), transaction.atomic():
        FileVersion.objects.create(**facts, since=2, until=2)
