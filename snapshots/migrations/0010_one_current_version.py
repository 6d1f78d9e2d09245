"""Puts back what 0004 takes away on PostgreSQL: Django drops every index on a column that loses its own, and a unique
constraint with a condition is such an index there."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("snapshots", "0009_indexes_for_lists")]

    operations = [
        migrations.RunSQL(
            "CREATE UNIQUE INDEX IF NOT EXISTS file_version_one_current"
            " ON snapshots_fileversion (file_id) WHERE until IS NULL",
            migrations.RunSQL.noop,
        )
    ]
