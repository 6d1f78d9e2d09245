"""Apps, the repositories they care about, and the watches between the two."""

import hashlib
import json
import secrets
from typing import Self
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import (
    MaxLengthValidator,
    MaxValueValidator,
    MinLengthValidator,
    MinValueValidator,
    RegexValidator,
    URLValidator,
)
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.utils import timezone

from repositories.base.crypto import EncryptedField
from repositories.git.urls import RemoteUrl
from repositories.selection import Selection

_GRANTED = r"\A[A-Za-z0-9][A-Za-z0-9_-]*/(\*|[A-Za-z0-9._-]+)\Z"


def _app_id() -> str:
    return f"app_{secrets.token_hex(12)}"


def _repository_id() -> str:
    return f"repo_{secrets.token_hex(12)}"


def _hook_id() -> str:
    return f"hook_{secrets.token_hex(12)}"


def _check_base_url(text: str) -> None:
    """Django's URLValidator would refuse host names without a dot, which private networks have."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment or any(ord(letter) <= 32 for letter in text):
        raise ValidationError("Enter a URL such as https://app.example.com/hooks, without credentials or query.")


def hash_of(bearer_token: str) -> str:
    """A bearer token is 256 random bits: a plain hash is as safe as a slow one, and can be an index."""
    return hashlib.sha256(bearer_token.encode()).hexdigest()


class OptionalEvent(models.TextChoices):
    """What an app is told about a repository as a whole only if it wants to know."""

    SYNC_RECOVERED = "sync_recovered", "sync_recovered: a repository can be read again"
    SYNC_COMPLETE = "sync_complete", "sync_complete: the app has all files of a commit"


def _check_events(events: object) -> None:
    if not isinstance(events, list) or not set(map(str, events)) <= set(OptionalEvent.values):
        raise ValidationError(f"Optional events are {' and '.join(OptionalEvent.values)}.")


class App(models.Model):
    """A client app: its bearer token, and where its webhooks go."""

    public_id = models.CharField(max_length=28, unique=True, default=_app_id, editable=False)
    name = models.CharField(max_length=200)
    base_url = models.CharField(
        max_length=2000, validators=[_check_base_url], help_text="Webhooks go to {base_url}/create, /update, …"
    )
    email = models.EmailField(blank=True)
    website = models.CharField(max_length=2000, blank=True, validators=[URLValidator()])
    description = models.TextField(blank=True)
    bearer_hash = models.CharField(max_length=64, unique=True, editable=False)
    webhook_key = EncryptedField(validators=[MinLengthValidator(16), MaxLengthValidator(500)], editable=False)
    max_in_flight = models.PositiveSmallIntegerField(
        default=8,
        validators=[MinValueValidator(1), MaxValueValidator(64)],
        help_text="Webhooks sent at the same time; 1 keeps the strict order.",
    )
    events = models.JSONField(
        "optional events",
        default=list,
        blank=True,
        validators=[_check_events],
        help_text="What the app is told beside its files, because it wants to know.",
    )
    # Not read any more. It goes with the next release: until then workers of the last one may run beside this one.
    wants_recovery = models.BooleanField(default=False, editable=False)
    may_change_base_url = models.BooleanField(
        default=False,
        db_default=False,
        help_text="The app may change its base URL itself, through the API, to a public address.",
    )

    previous_webhook_keys = EncryptedField(
        blank=True, default="", editable=False, help_text="As JSON, the newest first."
    )
    previous_key_until = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Until then, webhooks are signed with the previous keys too."
    )
    disabled_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="Nothing is sent since then.")
    disabled_reason = models.CharField(max_length=300, blank=True, editable=False)
    failing_since = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="The endpoint has accepted nothing since then."
    )
    slow_since = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="In the slow lane: the endpoint took too long to answer."
    )
    resting_until = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="The endpoint asked not to be told anything before."
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(name="app_in_flight", condition=Q(max_in_flight__gte=1, max_in_flight__lte=64)),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id})"

    def clean(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        self.events = sorted(set(self.events))
        self.wants_recovery = self.wants(OptionalEvent.SYNC_RECOVERED)

    def wants(self, event: str) -> bool:
        return event in self.events

    @property
    def signing_keys(self) -> list[str]:
        """The webhook key and, during a rotation, those before it."""
        overlaps = self.previous_key_until is not None and self.previous_key_until > timezone.now()
        return [self.webhook_key, *json.loads(self.previous_webhook_keys)] if overlaps else [self.webhook_key]

    @classmethod
    def with_bearer(cls, token: str) -> Self | None:
        """The app of this token; also of one that was rotated away, until its overlap ends."""
        bearer_hash = hash_of(token)
        previous = PreviousBearer.objects.filter(bearer_hash=bearer_hash, valid_until__gt=timezone.now())
        return (
            cls.objects.filter(bearer_hash=bearer_hash).first()
            or cls.objects.filter(pk__in=previous.values("app")).first()
        )


class PreviousBearer(models.Model):
    """A bearer token that was rotated away and is accepted for a while yet."""

    app = models.ForeignKey(App, models.CASCADE, related_name="previous_bearers")
    bearer_hash = models.CharField(max_length=64, unique=True)
    valid_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"of {self.app}, until {self.valid_until}"


class GitHubGrant(models.Model):
    """The operator lets an app read through the GitHub App: every repository of an owner, or one."""

    app = models.ForeignKey(App, models.CASCADE, related_name="github_grants", db_index=False)
    pattern = models.CharField(
        max_length=200,
        validators=[RegexValidator(_GRANTED, "Enter owner/* or owner/name.")],
        help_text="owner/* or owner/name",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name = "GitHub grant"
        constraints = [models.UniqueConstraint(fields=["app", "pattern"], name="github_grant_unique")]

    def __str__(self) -> str:
        return f"{self.app.name} may read {self.pattern}"

    @property
    def owner(self) -> str:
        return self.pattern.partition("/")[0]

    def clean(self) -> None:
        """GitHub does not tell upper from lower case."""
        self.pattern = self.pattern.lower()


class Repository(models.Model):
    """A git URL and a ref; two refs of one URL share the clone and its lock."""

    public_id = models.CharField(max_length=29, unique=True, default=_repository_id, editable=False)
    url = models.CharField(max_length=2000, editable=False)
    owner = models.CharField(max_length=1000, editable=False)
    name = models.CharField(max_length=255, editable=False)
    clone_key = models.CharField(max_length=600, editable=False)
    ref = models.CharField(max_length=255, blank=True, editable=False, help_text="Empty: the default branch.")
    is_private = models.BooleanField(default=False, editable=False)

    sequence = models.PositiveBigIntegerField(default=0, editable=False, help_text="Number of the newest snapshot.")
    commit_sha = models.CharField(max_length=64, blank=True, editable=False)
    branch = models.CharField(max_length=255, blank=True, editable=False, help_text="What the ref stood for last.")
    fence = models.PositiveBigIntegerField(
        default=0,
        editable=False,
        help_text="The lock's number at the newest fetch that was written; a smaller one is refused.",
    )
    fetch_fence = models.PositiveBigIntegerField(
        default=0, editable=False, help_text="The lock's number at the newest fetch that was begun."
    )

    needs_repair = models.BooleanField(
        default=False, editable=False, help_text="The clone lacks something; made anew at the next look."
    )
    next_check_at = models.DateTimeField(default=timezone.now, editable=False)
    noticed_at = models.DateTimeField(
        null=True, editable=False, help_text="A change was noticed at this time, and no look has dealt with it yet."
    )
    last_checked_at = models.DateTimeField(null=True, editable=False)

    consecutive_failures = models.PositiveIntegerField(default=0, editable=False)
    circuit_open_until = models.DateTimeField(null=True, blank=True, editable=False)
    circuit_opened_at = models.DateTimeField(
        null=True, editable=False, help_text="When it opened last; kept when it closes, so that notices can name it."
    )
    probe_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="The host did not answer; it is asked again at this time."
    )
    last_error_code = models.CharField(max_length=40, blank=True, editable=False)
    last_error = models.TextField(blank=True, editable=False)

    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name_plural = "repositories"
        constraints = [
            # clone_key is computed from the normalised URL, so this is the unique URL + ref.
            models.UniqueConstraint(fields=["clone_key", "ref"], name="repository_unique_url_and_ref"),
        ]
        indexes = [
            models.Index(fields=["next_check_at"], name="repository_due"),
            # A git host names a pushed repository, perhaps in another case.
            models.Index(Lower("clone_key"), name="repository_of_push"),
            # Few rows are in it: counting the open circuits costs what is open.
            models.Index(
                fields=["circuit_open_until"],
                condition=Q(circuit_open_until__isnull=False),
                name="repository_circuit_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.ref}" if self.ref else "")

    @property
    def remote(self) -> RemoteUrl:
        return RemoteUrl.parse(self.url)


class WatchStatus(models.TextChoices):
    # Waiting for a worker, for the first time or again.
    PENDING = "pending_snapshot"
    # A worker is fetching or delivering.
    SCANNING = "scanning"
    # The app has everything of the commit in `synced_commit`.
    SYNCED = "synced"
    # Out of attempts for now; tried again at the next look at the repository.
    FAILED = "failed"


class Watch(models.Model):
    """One app's interest in one repository, with the token that it may read it with."""

    app = models.ForeignKey(App, models.CASCADE, related_name="watches", editable=False)
    repository = models.ForeignKey(Repository, models.CASCADE, related_name="watches", editable=False)
    token = EncryptedField(blank=True, editable=False)
    include = models.JSONField(default=list, editable=False, help_text="Globs of the files that the app wants.")
    exclude = models.JSONField(default=list, editable=False, help_text="Globs of the files that it does not want.")
    max_file_size = models.PositiveBigIntegerField(null=True, editable=False)
    status = models.CharField(max_length=20, choices=WatchStatus.choices, default=WatchStatus.PENDING, editable=False)
    retry_count = models.PositiveIntegerField(default=0, editable=False)
    retry_at = models.DateTimeField(null=True, editable=False, help_text="No delivery before this time.")
    last_error_code = models.CharField(max_length=40, blank=True, editable=False)
    last_error = models.TextField(blank=True, editable=False)
    access_proven_at = models.DateTimeField(null=True, editable=False)
    access_denied_at = models.DateTimeField(null=True, editable=False)
    synced_sequence = models.PositiveBigIntegerField(default=0, editable=False)
    begun_sequence = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        editable=False,
        help_text="The snapshot of which a delivery may have told something that is not written down; 0 if none.",
    )
    begun_selection = models.JSONField(
        default=dict, db_default={}, editable=False, help_text="Which of its files were chosen at that time."
    )
    synced_commit = models.CharField(max_length=64, blank=True, editable=False)
    synced_at = models.DateTimeField(null=True, editable=False)
    files = models.PositiveIntegerField(default=0, editable=False, help_text="How many files the app has now.")
    digest = models.CharField(
        max_length=64, default="0" * 64, editable=False, help_text="Of all that the app has now: snapshots/digests.py."
    )
    step = models.JSONField(
        default=dict, editable=False, help_text="What was told since the last complete commit: snapshots/steps.py."
    )
    generation = models.PositiveIntegerField(
        default=0, editable=False, help_text="Counts up when a delivery under way must stop and look anew."
    )
    asked_again = models.BooleanField(
        default=False, editable=False, help_text="Files that the app accepted or refused are marked to be told again."
    )
    restarts = models.PositiveIntegerField(
        default=0,
        db_default=0,
        editable=False,
        help_text="Counts up when a delivery under way must note what was answered, stop, and look anew.",
    )
    resyncs = models.PositiveIntegerField(
        default=0,
        editable=False,
        help_text="How often everything was told again, or something else was chosen; part of the message ids.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name_plural = "watches"
        constraints = [
            models.UniqueConstraint(fields=["app", "repository"], name="watch_unique_app_and_repository"),
            models.CheckConstraint(name="watch_status", condition=Q(status__in=WatchStatus.values)),
        ]
        indexes = [models.Index(fields=["status"], name="watch_status")]

    def __str__(self) -> str:
        return f"{self.app} watches {self.repository}"

    @property
    def selection(self) -> Selection:
        return Selection(include=tuple(self.include), exclude=tuple(self.exclude), max_file_size=self.max_file_size)


class Canary(models.Model):
    """One row with an encrypted text: keys that do not decrypt it are not those of this database."""

    text = EncryptedField(default="canary", editable=False)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.text


class Hook(models.Model):
    """Where a git host tells of pushes: for one watch, made by its app, or for all repositories of a host.

    What has arrived at it is in Redis (`repositories.hooks`): the answer to a git host must not wait for a row.
    """

    public_id = models.CharField(max_length=29, unique=True, default=_hook_id, editable=False)
    watch = models.OneToOneField(
        Watch, models.CASCADE, related_name="hook", null=True, editable=False, help_text="None: for a whole host."
    )
    host = models.CharField(max_length=255, blank=True, help_text="As in DOCORA_GIT_HOSTS, such as github.com.")
    secret = EncryptedField(editable=False)
    previous_secrets = EncryptedField(
        blank=True,
        default="",
        editable=False,
        db_column="previous_secret",
        help_text="The newest first, with a blank between them.",
    )
    previous_secret_until = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Until then, the secrets before this one count too."
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="hook_of_watch_or_host",
                condition=Q(watch__isnull=False, host="") | (Q(watch__isnull=True) & ~Q(host="")),
            ),
        ]

    def __str__(self) -> str:
        return self.public_id
