"""The web server's door."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "docora.settings")
application = get_wsgi_application()
