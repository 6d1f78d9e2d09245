"""What a repository contained at each commit, what each app has of it, and every attempt to tell.

A first sync inserts hundreds of thousands of rows, and each index makes each of them dearer. A foreign key has no
index of its own (`db_index=False`) where another index begins with its column.
"""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from repositories.models import App, Repository, Watch
from snapshots.paths import GitPath

# An attempt was accepted if its answer was 2xx, or 404 to a delete: the app does not have the file.
_GONE_BEFORE = Q(event="delete", status=404)
ACCEPTED = Q(status__gte=200, status__lt=300) | _GONE_BEFORE
# This order is that of the partial index: in another one, SQLite would not use it for REFUSED or NO_ANSWER alone.
_NOT_2XX = Q(status__lt=200) | Q(status__gte=300)
NO_ANSWER = Q(status__isnull=True)
_INDEXED = _NOT_2XX | NO_ANSWER
REFUSED = _NOT_2XX & ~_GONE_BEFORE
NOT_ACCEPTED = _INDEXED & ~_GONE_BEFORE


def is_accepted(status: int | None, event: str = "") -> bool:
    return status is not None and (200 <= status < 300 or (event == "delete" and status == 404))


# A row of Delivered for a content that the app has. The others only ask for a delete to be repeated.
HELD = ~Q(again="delete")


class Snapshot(models.Model):
    """One commit of one repository, numbered in the order in which Docora saw them."""

    repository = models.ForeignKey(Repository, models.CASCADE, related_name="snapshots", db_index=False)
    sequence = models.PositiveBigIntegerField()
    commit_sha = models.CharField(max_length=64)
    branch = models.CharField(max_length=255, blank=True)
    files = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    created = models.PositiveIntegerField(default=0)
    updated = models.PositiveIntegerField(default=0)
    deleted = models.PositiveIntegerField(default=0)
    left_out = models.JSONField(default=list, help_text="What is not delivered of this commit, and why.")
    noticed_at = models.DateTimeField(null=True, help_text="When Docora noticed the change: by a look, or by a hint.")
    fetched_at = models.DateTimeField(null=True)
    taken_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["repository", "sequence"], name="snapshot_unique_sequence"),
        ]
        indexes = [models.Index(fields=["taken_at"], name="snapshot_taken")]

    def __str__(self) -> str:
        return f"{self.repository} #{self.sequence} at {self.commit_sha[:12]}"


class File(models.Model):
    """A path in a repository. The exact bytes of a path have no length limit, so an index takes their digest."""

    repository = models.ForeignKey(Repository, models.CASCADE, related_name="files", db_index=False)
    path_digest = models.BinaryField(max_length=32)
    path = models.TextField(help_text="As it is shown and sent.")
    raw_path = models.BinaryField(null=True, help_text="The exact bytes, where they are not UTF-8.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["repository", "path_digest"], name="file_unique_path"),
        ]

    def __str__(self) -> str:
        return self.path

    @property
    def git_path(self) -> GitPath:
        return GitPath.of_row(self.path, self.raw_path)


class FileVersion(models.Model):
    """The content of a path from the snapshot `since` up to, not including, the snapshot `until`.

    The manifest of snapshot n is every version with since <= n and (until is null or until > n):
    a change costs a row, not a copy of the manifest, and every manifest stays readable as it was.
    """

    # The rows go with their repository in one statement; the database checks the file at the commit.
    repository = models.ForeignKey(Repository, models.CASCADE, related_name="+", db_index=False)
    file = models.ForeignKey(File, models.DO_NOTHING, related_name="versions", db_index=False)
    blob = models.CharField(max_length=64, help_text="Git's own name of the content.")
    mode = models.CharField(max_length=6)
    size = models.PositiveBigIntegerField()
    sha256 = models.BinaryField(max_length=32)
    since = models.PositiveBigIntegerField()
    until = models.PositiveBigIntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["file"], condition=Q(until=None), name="file_version_one_current"),
            models.CheckConstraint(name="file_version_span", condition=Q(until=None) | Q(until__gt=F("since"))),
        ]
        indexes = [
            # What began or ended between two snapshots, and the current files (until is null), each page by file.
            models.Index(fields=["repository", "since", "file"], name="file_version_began"),
            models.Index(fields=["repository", "until", "file"], name="file_version_ended"),
            # The last version of a file that is gone; and the database's own check when a file is forgotten.
            models.Index(fields=["file", "until"], name="file_version_of_file"),
            # A content that was hashed before.
            models.Index(fields=["repository", "blob"], name="file_version_blob"),
        ]

    def __str__(self) -> str:
        return f"{self.file} since #{self.since}"


class Delivered(models.Model):
    """What an app has: the content of each path that it acknowledged last. See HELD for the exception."""

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="delivered", db_index=False)
    file = models.ForeignKey(File, models.DO_NOTHING, related_name="delivered")
    sha256 = models.BinaryField(max_length=32)
    delivered_at = models.DateTimeField(default=timezone.now)
    # Null, not empty: only then can SQLite use the index of the rows that have one.
    again = models.CharField(  # noqa: DJ001  see above
        max_length=10, null=True, help_text="The event that somebody asked to be told again, although the app has it."
    )

    class Meta:
        verbose_name_plural = "delivered"
        constraints = [models.UniqueConstraint(fields=["watch", "file"], name="delivered_unique_file")]
        # An ordinary row is not in it, so it costs a first sync nothing.
        indexes = [models.Index(fields=["watch", "file"], condition=Q(again__isnull=False), name="delivered_again")]

    def __str__(self) -> str:
        return f"{self.file} to {self.watch}"


class Parked(models.Model):
    """A content that the app's endpoint refused for itself; the next content of the path is sent again."""

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="parked", db_index=False)
    file = models.ForeignKey(File, models.DO_NOTHING, related_name="parked")
    sha256 = models.BinaryField(max_length=32)
    reason = models.CharField(max_length=200)
    parked_at = models.DateTimeField(default=timezone.now)
    again = models.BooleanField(default=False, help_text="Somebody asked for another attempt.")

    class Meta:
        verbose_name_plural = "parked"
        constraints = [models.UniqueConstraint(fields=["watch", "file"], name="parked_unique_file")]
        indexes = [
            models.Index(fields=["watch", "file"], condition=Q(again=True), name="parked_again"),
            models.Index(fields=["watch", "parked_at"], name="parked_since"),
        ]

    def __str__(self) -> str:
        return f"{self.file} for {self.watch}: {self.reason}"


class Completion(models.Model):
    """An app had all of a commit: every file was acknowledged or parked. With what it had then, and how it got it."""

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="completions")
    app = models.ForeignKey(App, models.CASCADE, related_name="+", db_index=False)
    sequence = models.PositiveBigIntegerField()
    commit_sha = models.CharField(max_length=64)
    previous_commit = models.CharField(max_length=64, blank=True)
    branch = models.CharField(max_length=255, blank=True)
    created = models.PositiveIntegerField()
    updated = models.PositiveIntegerField()
    deleted = models.PositiveIntegerField()
    parked = models.PositiveIntegerField()
    left_out = models.PositiveIntegerField()
    files = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    noticed_at = models.DateTimeField()
    fetched_at = models.DateTimeField(null=True)
    first_acknowledged_at = models.DateTimeField(null=True)
    last_acknowledged_at = models.DateTimeField(null=True)
    latency_ms = models.PositiveBigIntegerField(null=True, help_text="From the notice to the last acknowledgement.")
    completed_at = models.DateTimeField(default=timezone.now)
    pending = models.BooleanField(help_text="The app wants sync_complete, and has not answered it yet.")
    attempts = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["completed_at"], name="completion_completed"),
            models.Index(fields=["app", "completed_at"], name="completion_app_completed"),
            # Few at any time: the scheduler looks for them at every tick.
            models.Index(fields=["watch"], condition=Q(pending=True), name="completion_pending"),
        ]

    def __str__(self) -> str:
        return f"{self.watch} complete at {self.commit_sha[:12]}"


class Delivery(models.Model):
    """One attempt to tell an app something. Bodies are not kept: they can be rebuilt from git."""

    watch = models.ForeignKey(Watch, models.CASCADE, related_name="deliveries", db_index=False)
    message_id = models.CharField(max_length=40)
    event = models.CharField(max_length=20)
    path = models.TextField(blank=True)
    sha256 = models.CharField(max_length=64, blank=True)
    commit_sha = models.CharField(max_length=64, blank=True)
    piece = models.PositiveIntegerField(default=0, db_default=0, help_text="From 1, of a file that goes in pieces.")
    pieces = models.PositiveIntegerField(default=0, db_default=0)
    sent_at = models.DateTimeField(null=True, help_text="The time in its body; empty: a notice, or not kept.")
    transfer = models.CharField(
        max_length=36, blank=True, default="", db_default="", help_text="The id that the pieces of one file share."
    )
    previous = models.BinaryField(max_length=32, null=True, help_text="Of an update: the content before, by SHA-256.")
    status = models.PositiveSmallIntegerField(null=True, help_text="The answer's HTTP status; empty: no answer.")
    milliseconds = models.PositiveIntegerField()
    error_class = models.CharField(
        max_length=20, blank=True, help_text="timeout, connection, status, …; empty: accepted."
    )
    error = models.CharField(max_length=200, blank=True)
    answer = models.TextField(blank=True, help_text="The first 2 KB of the answer.")
    manual = models.BooleanField(default=False, help_text="Somebody asked for it.")
    attempted_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "deliveries"
        # Not "view_…": the role that may see every row must not see what private files contain.
        permissions = [("read_content", "Can read the contents of files that were delivered")]
        indexes = [
            models.Index(fields=["attempted_at"], name="delivery_attempted"),
            # Read backwards: the newest first, and of the same moment the one with the highest id.
            models.Index(fields=["watch", "attempted_at"], name="delivery_of_watch"),
            # Few among many: to find them would else be to read the whole log. An accepted one costs nothing here.
            models.Index(fields=["attempted_at"], condition=_INDEXED, name="delivery_failed"),
            models.Index(fields=["watch", "attempted_at"], condition=_INDEXED, name="delivery_failed_of_watch"),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.path} → {self.status or self.error}"

    @property
    def was_accepted(self) -> bool:
        return is_accepted(self.status, self.event)
