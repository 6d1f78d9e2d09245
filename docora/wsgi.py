"""The WSGI application that gunicorn loads."""

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application

os.umask(0o077)  # as in manage.py: gunicorn may be started without it
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "docora.settings")
_django = get_wsgi_application()

# They need the settings.
from docora.api.hooks.together import HooksTogether  # noqa: E402
from repositories import canary  # noqa: E402

try:
    canary.check_keys_at_start()
except canary.WrongKeys as error:
    sys.stderr.write(f"docora: {error}\n")
    sys.exit(3)  # gunicorn does not start a worker again that ends with this status


class Application:
    """Django's; and the hooks beside it, for a web server that can have several answered at a time. Where a server
    cannot, Django answers them too."""

    together = HooksTogether()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return _django(environ, start_response)


application = Application()
