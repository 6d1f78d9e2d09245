from django.apps import AppConfig


class DocoraConfig(AppConfig):
    name = "docora"

    def ready(self) -> None:
        from docora import checks  # noqa: F401  registers them
