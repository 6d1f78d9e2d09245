"""What the commands for operators have in common."""

from django.core.checks import Tags
from django.core.management.base import BaseCommand


class OperatorCommand(BaseCommand):
    """Starts in half of the time of Django's own: before it, only the database is checked.

    Django's other checks are about the code, not about the installation, and import every view for that. `check` and
    `migrate` run them.
    """

    requires_system_checks = [Tags.database]
