"""The operator's console: Django's admin, in which failures are seen before clients report them and fixed with a click.

    base.py         what every page has in common; the theme comes in here, in site.py and in users.py
    operations.py   one button, one confirmation, one line in the log of actions
    bulk.py         the same for many rows: queued, with progress and cancel
    overview.py     the first page
    statistics.py   deliveries and snapshots counted over time

Rows that the service writes are read-only here: they change through operations, which call services. Nothing
here knows of locks. Secrets are shown once, in the answer to the request that made them, and kept nowhere.
"""
