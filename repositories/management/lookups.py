"""What the arguments of commands name."""

from django.core.management.base import CommandError

from repositories.models import App, Repository


def find_app(app_id: str) -> App:
    app = App.objects.filter(public_id=app_id).first()
    if app is None:
        raise CommandError(f"There is no app {app_id}. `manage.py apps` lists them.")
    return app


def find_repository(repository_id: str) -> Repository:
    repository = Repository.objects.filter(public_id=repository_id).first()
    if repository is None:
        raise CommandError(f"There is no repository {repository_id}. `manage.py watches` lists them.")
    return repository
