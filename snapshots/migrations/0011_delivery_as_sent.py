from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("snapshots", "0010_one_current_version")]

    operations = [
        migrations.AddField(
            model_name="delivery",
            name="sent_at",
            field=models.DateTimeField(help_text="The time in its body; empty: a notice, or not kept.", null=True),
        ),
        migrations.AddField(
            model_name="delivery",
            name="transfer",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The id that the pieces of one file share.",
                max_length=36,
            ),
        ),
        migrations.AddField(
            model_name="delivery",
            name="previous",
            field=models.BinaryField(
                help_text="Of an update: the content before, by SHA-256.", max_length=32, null=True
            ),
        ),
    ]
