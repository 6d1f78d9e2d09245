"""The WSGI application that gunicorn loads."""

import os

from django.core.wsgi import get_wsgi_application

os.umask(0o077)  # as in manage.py: gunicorn may be started without it
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "docora.settings")
application = get_wsgi_application()
