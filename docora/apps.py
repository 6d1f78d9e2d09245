from django.apps import AppConfig
from django.db.models.signals import post_migrate


class DocoraConfig(AppConfig):
    name = "docora"

    def ready(self) -> None:
        from docora import checks  # noqa: F401  registers them
        from docora.console.roles import make_roles
        from repositories import canary

        post_migrate.connect(make_roles, dispatch_uid="docora.roles")
        post_migrate.connect(canary.store, dispatch_uid="docora.canary")
