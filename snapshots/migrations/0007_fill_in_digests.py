"""The digest of all that each app has, from the rows of what it acknowledged."""

from typing import Any

from django.db import migrations

from snapshots import digests


def fill_in(apps: Any, schema_editor: Any) -> None:
    Watch, Delivered = apps.get_model("repositories", "Watch"), apps.get_model("snapshots", "Delivered")
    for watch_id in list(Watch.objects.values_list("pk", flat=True)):
        rows = Delivered.objects.filter(watch=watch_id).exclude(again="delete")
        columns = rows.values_list("file__path", "file__raw_path", "sha256")
        has = digests.of_files(
            (path.encode() if raw is None else bytes(raw), bytes(sha256))
            for path, raw, sha256 in columns.iterator(chunk_size=2000)
        )
        Watch.objects.filter(pk=watch_id).update(files=has.files, digest=has.digest)


class Migration(migrations.Migration):
    dependencies = [
        ("repositories", "0007_digest"),
        ("snapshots", "0006_noticed_at"),
    ]

    operations = [migrations.RunPython(fill_in, migrations.RunPython.noop)]
