"""Where Django's admin looks for pages: each of these modules registers its own."""

from docora.console import (  # noqa: F401
    apps,
    deliveries,
    github_grants,
    hooks,
    parked,
    queue,
    repositories,
    snapshots,
    users,
    watches,
)
