"""Which database and which Redis this process talks to, without names and passwords of users."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings


def database() -> str:
    parts: dict[str, Any] = settings.DATABASES["default"]
    if parts["ENGINE"].endswith("sqlite3"):
        return str(parts["NAME"])
    port = f":{parts['PORT']}" if parts.get("PORT") else ""
    return f"{parts['ENGINE'].rpartition('.')[2]}://{parts.get('HOST') or 'localhost'}{port}/{parts['NAME']}"


def redis_server() -> str:
    parts = urlsplit(settings.REDIS_URL)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def both() -> str:
    return f"database {database()}, Redis {redis_server()}"
