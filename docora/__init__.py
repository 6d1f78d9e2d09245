"""The Django project: settings and URLs; the API, the admin, the metrics and the processes are packages in it."""

__version__ = "0.1.0"
