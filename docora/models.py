"""What the frame itself keeps."""

from django.db import models
from django.utils import timezone


class Alert(models.Model):
    """Something that the operator is to be told, or was told, through one channel; gone once its end was told."""

    channel = models.CharField(max_length=10)
    key = models.CharField(max_length=300)
    kind = models.CharField(max_length=20)
    subject = models.CharField(max_length=1500)
    reason = models.TextField(blank=True)
    hint = models.TextField(blank=True)
    began_at = models.DateTimeField(default=timezone.now)
    told_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(help_text="Its beginning or its end is told from then on.")
    attempts = models.PositiveIntegerField(default=0)
    claim = models.CharField(max_length=32, blank=True, help_text="Of the scheduler that is telling it now.")
    claimed_until = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["channel", "key"], name="alert_unique_channel_and_key")]

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"
