"""The WSGI application that gunicorn loads."""

import os
import sys

from django.core.wsgi import get_wsgi_application

os.umask(0o077)  # as in manage.py: gunicorn may be started without it
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "docora.settings")
application = get_wsgi_application()

from repositories import canary  # noqa: E402  its models need the settings

try:
    canary.check_keys_at_start()
except canary.WrongKeys as error:
    sys.stderr.write(f"docora: {error}\n")
    sys.exit(3)  # gunicorn does not start a worker again that ends with this status
