"""Django's settings. The environment is read in docora.env, and only there."""

import os
from importlib.util import find_spec
from pathlib import Path

import dj_database_url
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

from docora import env, keys, logs
from docora.console.theme import UNFOLD as UNFOLD
from docora.existing_sqlite import ExistingSqlite
from docora.keys import read_rsa_key
from repositories.base import queue_names

# A missing git is told in one line by the commands that need it, not by GitPython's import.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

DEBUG = env.DEBUG
# A command that may not create the file gets a key of its own: it signs nothing that outlives it.
SECRET_KEY = (
    env.SECRET_KEY
    or keys.read_or_create(env.DATA_DIR / "keys" / "django_secret_key", get_random_secret_key)
    or get_random_secret_key()
)
ALLOWED_HOSTS = list(env.ALLOWED_HOSTS)
CSRF_TRUSTED_ORIGINS = list(env.CSRF_TRUSTED_ORIGINS)

INSTALLED_APPS = [
    "docora",
    "repositories",
    "snapshots",
    "unfold.apps.BasicAppConfig",
    "docora.console.config.ConsoleConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_rq",
]

MIDDLEWARE = [
    "docora.middleware.request_id.RequestId",
    "django.middleware.security.SecurityMiddleware",
    "docora.middleware.csp.ContentSecurityPolicy",
    "docora.api.hooks.middleware.HooksFirst",
    "docora.api.gate.ApiGate",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "docora.urls"
WSGI_APPLICATION = "docora.wsgi.application"

# Of django-ninja only the files of its documentation page: as an app, every worker would import it, and pydantic.
_NINJA = Path(str(getattr(find_spec("ninja"), "origin", ""))).parent
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [_NINJA / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# Read then write in a deferred transaction fails with "database is locked" as soon as two processes
# do it; IMMEDIATE takes the write lock first, and the time-out is then a queue.
_SQLITE = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-8000;",
}


def _database(url: str) -> dict[str, object]:
    try:
        config = dict(dj_database_url.parse(url, conn_max_age=60, conn_health_checks=True))
    except ValueError:
        raise ImproperlyConfigured(
            "DATABASE_URL: expected a database URL such as postgres://user:password@host/name"
        ) from None
    if config["ENGINE"] == "django.db.backends.sqlite3":
        config["OPTIONS"] = _SQLITE if keys.may_create else _SQLITE | {"factory": ExistingSqlite}
    else:
        # Told to PostgreSQL as it is connected to; else Django asks for it with a statement, in the fork of every job.
        os.environ["PGTZ"] = "UTC"
    return config


DATABASES = {"default": _database(env.DATABASE_URL or f"sqlite:///{env.DATA_DIR / 'docora.sqlite3'}")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "static/"
STATICFILES_DIRS = [_NINJA / "static"]
WHITENOISE_USE_FINDERS = True

if env.SECURE:
    SECURE_SSL_REDIRECT = True
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 31_536_000
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True

REDIS_SOCKET = env.DATA_DIR / "valkey" / "valkey.sock"
REDIS_URL = env.REDIS_URL or f"unix://{REDIS_SOCKET}"
if not env.REDIS_URL and len(str(REDIS_SOCKET)) > 100:
    raise ImproperlyConfigured(
        f"DOCORA_DATA_DIR: expected a path of at most {100 - len('/valkey/valkey.sock')} characters"
        " (the embedded Valkey listens on a unix socket in it), or REDIS_URL set"
    )

# JSON, not pickle, and the functions below alone: reading what somebody else has written to Redis must not run code.
RQ_QUEUES = {
    name: {"URL": REDIS_URL, "SERIALIZER": "rq.serializers.JSONSerializer", "DEFAULT_TIMEOUT": 600}
    for name in queue_names.ALL
}
RQ = {
    "WORKER_CLASS": "docora.processes.kept_horse.HorseKeepingWorker",
    "COMMIT_MODE": "on_db_commit",
    "JOB_CLASS": "repositories.base.listed_job.ListedJob",
}
RQ_SHOW_ADMIN_LINK = False  # its pages are in docora/console/queue.py
JOB_FUNCTIONS: tuple[str, ...] = (
    "docora.console.bulk.run",
    "docora.console.disk.measure",
    "repositories.jobs.purge_clone",
    "repositories.jobs.recheck_owner",
    "snapshots.jobs.announce_failure",
    "snapshots.jobs.announce_recovery",
    "snapshots.jobs.announce_refusal",
    "snapshots.jobs.deliver",
    "snapshots.jobs.look_now",
    "snapshots.jobs.mail_disabled",
    "snapshots.jobs.measure",
    "snapshots.jobs.purge_clone",  # its name in messages of 0.1
    "snapshots.jobs.reconcile_all",
    "snapshots.jobs.resume_app",
    "snapshots.jobs.send_complete",
    "snapshots.jobs.send_notice",
    "snapshots.jobs.take_snapshot",
)

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
if env.LOG_LEVEL.upper() not in _LOG_LEVELS:
    raise ImproperlyConfigured(f"DOCORA_LOG_LEVEL: expected one of {', '.join(_LOG_LEVELS)}, got {env.LOG_LEVEL!r}")
if env.LOG_FORMAT not in logs.FORMS:
    raise ImproperlyConfigured(f"DOCORA_LOG_FORMAT: expected one of {', '.join(logs.FORMS)}, got {env.LOG_FORMAT!r}")
LOGGING = logs.configuration(form=env.LOG_FORMAT, level=env.LOG_LEVEL.upper())

EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if env.EMAIL_HOST else 'dummy'}.EmailBackend"
EMAIL_HOST = env.EMAIL_HOST
EMAIL_PORT = env.EMAIL_PORT
EMAIL_HOST_USER = env.EMAIL_HOST_USER
EMAIL_HOST_PASSWORD = env.EMAIL_HOST_PASSWORD
EMAIL_USE_TLS = env.EMAIL_USE_TLS
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.EMAIL_FROM
ALERT_WEBHOOK = env.ALERT_WEBHOOK
ALERT_WEBHOOK_KEY = env.ALERT_WEBHOOK_KEY
ALERT_EMAIL = env.ALERT_EMAIL
if ALERT_EMAIL and not EMAIL_HOST:
    raise ImproperlyConfigured("DOCORA_ALERT_EMAIL: expected EMAIL_HOST to be set too, or no e-mail can be sent")

DATA_DIR = env.DATA_DIR
REPOS_BASE_PATH = env.REPOS_BASE_PATH
ENCRYPTION_KEYS = list(env.ENCRYPTION_KEYS) or keys.listed(
    keys.read_or_create(env.DATA_DIR / "keys" / "encryption_key", lambda: Fernet.generate_key().decode())
)
TRUSTED_NETWORKS = env.TRUSTED_NETWORKS
TRUSTED_PROXIES = env.TRUSTED_PROXIES
APP_RATE = env.APP_RATE
ADDRESS_RATE = env.ADDRESS_RATE
LOGIN_RATE = env.LOGIN_RATE
HOOK_RATE = env.HOOK_RATE
REFRESH_RATE = env.REFRESH_RATE
MAX_WATCHES_PER_APP = env.MAX_WATCHES_PER_APP
NEW_WATCHES_PER_HOUR = env.NEW_WATCHES_PER_HOUR
MAX_BODY_BYTES = env.MAX_BODY_BYTES
MAX_VERIFY_BODY_BYTES = env.MAX_VERIFY_BODY_BYTES
READY_JOB_AGE = env.READY_JOB_AGE
METRICS_TOKEN = env.METRICS_TOKEN
WEB_THREADS = env.WEB_THREADS
GIT_HOSTS = env.GIT_HOSTS
GITHUB_APP_ID = env.GITHUB_APP_ID
GITHUB_APP_PRIVATE_KEY = env.GITHUB_APP_ID and read_rsa_key(
    "DOCORA_GITHUB_APP_PRIVATE_KEY", env.GITHUB_APP_PRIVATE_KEY, env.GITHUB_APP_PRIVATE_KEY_FILE
)
GITHUB_APP_WEBHOOK_SECRET = env.GITHUB_APP_WEBHOOK_SECRET
GITHUB_APP_API_URL = env.GITHUB_APP_API_URL.rstrip("/")
GIT_TIMEOUT = env.GIT_TIMEOUT
GIT_ASK_TIMEOUT = env.GIT_ASK_TIMEOUT
GIT_STALL_TIMEOUT = env.GIT_STALL_TIMEOUT
GIT_CA_FILE = env.GIT_CA_FILE or env.CA_FILE
CA_FILE = env.CA_FILE
HTTP_PROXY = env.HTTP_PROXY
NO_PROXY = env.NO_PROXY
GIT_MEMORY_BYTES = env.GIT_MEMORY_BYTES
GIT_CPU_SECONDS = env.GIT_CPU_SECONDS
MAX_FILE_BYTES = env.MAX_FILE_BYTES
MAX_REPOSITORY_BYTES = env.MAX_REPOSITORY_BYTES
MAX_REPOSITORY_FILES = env.MAX_REPOSITORY_FILES
DISK_RESERVE_BYTES = env.DISK_RESERVE_BYTES
DISK_QUOTA_BYTES = env.DISK_QUOTA_BYTES
DISK_LOW_PERCENT = env.DISK_LOW_PERCENT
RECONCILE_INTERVAL = env.RECONCILE_INTERVAL
ACCESS_PROOF_AGE = env.ACCESS_PROOF_AGE
SCAN_INTERVAL = env.SCAN_INTERVAL
RESCAN_INTERVAL = env.RESCAN_INTERVAL
HOOKED_RESCAN_INTERVAL = env.HOOKED_RESCAN_INTERVAL
MIN_RESCAN_INTERVAL = env.MIN_RESCAN_INTERVAL
SCAN_BACKLOG = env.SCAN_BACKLOG
LOOKS_PER_HOST = env.LOOKS_PER_HOST
FETCHES_PER_HOST = env.FETCHES_PER_HOST
MAX_RETRY_ATTEMPTS = env.MAX_RETRY_ATTEMPTS
RETRY_BASE_DELAY = env.RETRY_BASE_DELAY
CIRCUIT_BREAKER_THRESHOLD = env.CIRCUIT_BREAKER_THRESHOLD
CIRCUIT_BREAKER_COOLDOWN = env.CIRCUIT_BREAKER_COOLDOWN
REPO_LOCK_TTL = env.REPO_LOCK_TTL
REPO_LOCK_WAIT = env.REPO_LOCK_WAIT
WEBHOOK_TIMEOUT = env.WEBHOOK_TIMEOUT
NOTICE_TIMEOUT = env.NOTICE_TIMEOUT
HISTORY_DAYS = env.HISTORY_DAYS
ADMIN_LOG_DAYS = env.ADMIN_LOG_DAYS
SLOW_AFTER = env.SLOW_AFTER
ENDPOINT_PATIENCE_DAYS = env.ENDPOINT_PATIENCE_DAYS
DELIVERY_LOG_DAYS = env.DELIVERY_LOG_DAYS
BINARY_CHUNK_THRESHOLD_BYTES = env.BINARY_CHUNK_THRESHOLD_BYTES
BINARY_CHUNK_SIZE_BYTES = env.BINARY_CHUNK_SIZE_BYTES
TEXT_CHUNK_THRESHOLD_BYTES = env.TEXT_CHUNK_THRESHOLD_BYTES
