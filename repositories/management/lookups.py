"""What the arguments of commands name."""

from django.core.management.base import CommandError

from repositories.models import App


def find_app(app_id: str) -> App:
    app = App.objects.filter(public_id=app_id).first()
    if app is None:
        raise CommandError(f"There is no app {app_id}. `manage.py apps` lists them.")
    return app
