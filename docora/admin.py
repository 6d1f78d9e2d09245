"""Where Django's admin looks for pages: each of these modules registers its own."""

from docora.console import apps, deliveries, parked, queue, repositories, snapshots, users, watches

__all__ = ["apps", "deliveries", "parked", "queue", "repositories", "snapshots", "users", "watches"]
