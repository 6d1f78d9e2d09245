"""Every environment variable that Docora reads, with its type, unit, default and meaning.

A wrong value stops the start with the variable's name and what was expected.
docs/settings.md lists the same table; a test keeps the two equal.
"""

import ipaddress
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

T = TypeVar("T")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    kind: str
    default: str
    meaning: str


SETTINGS: dict[str, Setting] = {}
_SHORTEST_SECRET = 16


def _read(name: str, kind: str, parse: Callable[[str], T], default: T, meaning: str, shown: str) -> T:
    SETTINGS[name] = Setting(name=name, kind=kind, default=shown, meaning=meaning)
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        detail = f" ({error})" if str(error) and kind.startswith("list") else ""
        raise ImproperlyConfigured(f"{name}: expected {kind}, got {text!r}{detail}") from None


def _text(name: str, default: str, meaning: str, *, kind: str = "text", shown: str | None = None) -> str:
    return _read(name, kind, str, default, meaning, default if shown is None else shown)


def _secret(name: str, meaning: str, *, shown: str) -> str:
    return _text(name, "", meaning, shown=shown)


def _long_secret(name: str, meaning: str) -> str:
    kind = f"text of at least {_SHORTEST_SECRET} characters"

    def parse(text: str) -> str:
        if len(text) < _SHORTEST_SECRET:
            # Not the value itself: it is a secret, even a wrong one.
            raise ImproperlyConfigured(f"{name}: expected {kind}")
        return text

    return _read(name, kind, parse, "", meaning, "")


def _path(name: str, default: Path, meaning: str, *, shown: str) -> Path:
    return _read(name, "a path", lambda text: Path(text).expanduser().absolute(), default, meaning, shown)


def _file(name: str, meaning: str) -> Path | None:
    def parse(text: str) -> Path:
        path = Path(text).expanduser().absolute()
        if not path.is_file():
            raise ValueError
        return path

    return _read(name, "the path of a file", parse, None, meaning, "")


def _address(name: str, default: str, meaning: str) -> str:
    return _read(name, "an IP address", lambda text: str(ipaddress.ip_address(text)), default, meaning, default)


def _boolean(name: str, default: bool, meaning: str) -> bool:
    words = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)

    def parse(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError
        return words[text.lower()]

    return _read(name, "true or false", parse, default, meaning, str(default).lower())


def _number(name: str, kind: str, default: int, meaning: str, least: int, most: int | None) -> int:
    def parse(text: str) -> int:
        number = int(text)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    return _read(name, kind, parse, default, meaning, str(default))


def _integer(name: str, default: int, meaning: str, *, least: int = 1, most: int | None = None) -> int:
    upper = "" if most is None else f" and at most {most}"
    return _number(name, f"a whole number of at least {least}{upper}", default, meaning, least, most)


def _bytes(name: str, default: int, meaning: str, *, least: int = 1) -> int:
    return _number(name, f"a whole number of bytes of at least {least}", default, meaning, least, None)


def _seconds(name: str, default: float, meaning: str, *, zero: bool = False) -> float:
    def parse(text: str) -> float:
        seconds = float(text)
        if not (seconds >= 0 if zero else seconds > 0) or seconds == float("inf"):
            raise ValueError
        return seconds

    kind = "a number of seconds of at least 0" if zero else "a number of seconds greater than 0"
    return _read(name, kind, parse, default, meaning, f"{default:g}")


def _list(
    name: str, kind: str, parse: Callable[[str], T], default: tuple[T, ...], meaning: str, *, shown: str
) -> tuple[T, ...]:
    def parse_all(text: str) -> tuple[T, ...]:
        return tuple(parse(item.strip()) for item in text.split(",") if item.strip())

    return _read(name, f"list of {kind}, separated by commas", parse_all, default, meaning, shown)


def _host(text: str) -> str:
    if any(mark in text for mark in "/@ ?#\\"):
        raise ValueError(f"{text!r} is not host or host:port")
    return text.lower()


def _email(text: str) -> str:
    if not re.fullmatch(r"[^@\s]+@[^@\s]+", text):
        raise ValueError(f"{text!r} is not an address")
    return text


def _url(name: str, meaning: str) -> str:
    kind = "a URL such as https://hooks.example.com/docora"

    def parse(text: str) -> str:
        if not re.fullmatch(r"https?://[^@\s/?#]+(/[^\s#]*)?", text):
            # Not the value itself: it may have a token in its path.
            raise ImproperlyConfigured(f"{name}: expected {kind}, without credentials")
        return text

    return _read(name, kind, parse, "", meaning, "")


def _fernet_keys(name: str, meaning: str, *, shown: str) -> tuple[str, ...]:
    from cryptography.fernet import Fernet

    def parse(text: str) -> str:
        try:
            Fernet(text)
        except ValueError:
            # Not the value itself: it is a secret, even a wrong one.
            raise ImproperlyConfigured(f"{name}: expected Fernet keys (32 bytes in URL-safe base64)") from None
        return text

    return _list(name, "Fernet keys", parse, (), meaning, shown=shown)


def _proxy(name: str, meaning: str) -> str:
    kind = "a URL such as http://proxy.example.com:3128"

    def parse(text: str) -> str:
        try:
            parts = urlsplit(text)
            if parts.scheme != "http" or not parts.hostname or parts.port == 0 or parts.path.strip("/"):
                raise ValueError
        except ValueError:
            # Not the value itself: it may have a password.
            raise ImproperlyConfigured(f"{name}: expected {kind}") from None
        return text

    return _read(name, kind, parse, "", meaning, "")


def _name_or_network(text: str) -> str | Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return _host(text)


BASE_DIR = Path(__file__).resolve().parent.parent

DATA_DIR = _path(
    "DOCORA_DATA_DIR",
    BASE_DIR / "data",
    "state of the embedded default: database, Valkey, clones, generated keys, logs",
    shown="./data",
)
PORT = _integer("PORT", 8000, "the port that `manage.py up` listens on", most=65535)
BIND = _address(
    "DOCORA_BIND",
    "127.0.0.1",
    "the address that `manage.py up` listens on; any other one belongs behind a proxy with TLS",
)
DEBUG = _boolean("DJANGO_DEBUG", False, "Django's debug pages; never in production")
SECRET_KEY = _secret("DJANGO_SECRET_KEY", "signs sessions and forms", shown="generated once in `DOCORA_DATA_DIR/keys`")
ALLOWED_HOSTS = _list(
    "DJANGO_ALLOWED_HOSTS",
    "host names",
    _host,
    ("127.0.0.1", "localhost"),
    "host names under which the web pages may be asked for",
    shown="127.0.0.1,localhost",
)
CSRF_TRUSTED_ORIGINS = _list(
    "DJANGO_CSRF_TRUSTED_ORIGINS",
    "origins",
    str,
    (),
    "origins such as https://docora.example.com whose forms the admin accepts behind a proxy",
    shown="",
)
SECURE = _boolean("DOCORA_SECURE", False, "served over https only: secure cookies, redirects from http, HSTS")
ENCRYPTION_KEYS = _fernet_keys(
    "ENCRYPTION_KEYS",
    "keys that encrypt tokens and webhook keys at rest, newest first; the older ones still decrypt",
    shown="generated once in `DOCORA_DATA_DIR/keys`",
)
ENCRYPTION_KEYS += _fernet_keys(
    "ENCRYPTION_KEY", "the one key of earlier installations: counts behind those of `ENCRYPTION_KEYS`", shown=""
)
DATABASE_URL = _secret(
    "DATABASE_URL",
    "the database, such as postgres://user:password@host/name",
    shown="SQLite in `DOCORA_DATA_DIR`",
)
REDIS_URL = _secret(
    "REDIS_URL",
    "the Redis or Valkey server of queue and lock, such as redis://host:6379/0",
    shown="an embedded Valkey in `DOCORA_DATA_DIR`",
)
REPOS_BASE_PATH = _path(
    "REPOS_BASE_PATH",
    DATA_DIR / "repos",
    "where the clones are; every worker on every host must see the same files",
    shown="`DOCORA_DATA_DIR/repos`",
)
TRUSTED_NETWORKS: tuple[Network, ...] = _list(
    "DOCORA_TRUSTED_NETWORKS",
    "networks such as 10.1.0.0/16",
    ipaddress.ip_network,
    (),
    "private networks that git and webhooks may dial all the same, also over plain http",
    shown="",
)
TRUSTED_PROXIES: tuple[Network, ...] = _list(
    "DOCORA_TRUSTED_PROXIES",
    "networks such as 10.1.0.0/16",
    ipaddress.ip_network,
    (),
    "proxies in front of Docora whose X-Forwarded-For is believed; from anybody else it is ignored",
    shown="",
)
APP_RATE = _integer("DOCORA_APP_RATE", 1200, "API requests per minute that one app may make; 0: any number", least=0)
ADDRESS_RATE = _integer(
    "DOCORA_ADDRESS_RATE", 3000, "API requests per minute from one address (IPv6: one /64); 0: any number", least=0
)
LOGIN_RATE = _integer(
    "DOCORA_LOGIN_RATE",
    10,
    "attempts per minute to sign in to the admin, from one address and for one name; 0: any number",
    least=0,
)
HOOK_RATE = _integer(
    "DOCORA_HOOK_RATE", 3000, "hooks per minute that are taken from one git host's hook; 0: any number", least=0
)
REFRESH_RATE = _integer(
    "DOCORA_REFRESH_RATE", 30, "looks per minute that an app may ask for at one repository; 0: any number", least=0
)
MAX_WATCHES_PER_APP = _integer(
    "DOCORA_MAX_WATCHES_PER_APP", 1000, "repositories that one app may watch; 0: any number", least=0
)
NEW_WATCHES_PER_HOUR = _integer(
    "DOCORA_NEW_WATCHES_PER_HOUR",
    300,
    "watches and dry runs that one app may begin within an hour, each of which may be a clone; 0: any number",
    least=0,
)
READY_JOB_AGE = _seconds("DOCORA_READY_JOB_AGE", 900, "/ready answers 503 when a job has been waiting for longer")
METRICS_TOKEN = _long_secret(
    "DOCORA_METRICS_TOKEN", "the bearer token with which Prometheus may read /metrics; without it there is no /metrics"
)
MAX_BODY_BYTES = _bytes("DOCORA_MAX_BODY_BYTES", 65536, "a larger body of an API request is refused unread")
MAX_VERIFY_BODY_BYTES = _bytes(
    "DOCORA_MAX_VERIFY_BODY_BYTES", 32 << 20, "the same for a list of files that an app has verified"
)
GIT_HOSTS = _list(
    "DOCORA_GIT_HOSTS",
    "host names, with :port if it is not the usual one",
    _host,
    ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org"),
    "hosts whose repositories may be watched",
    shown="github.com,gitlab.com,bitbucket.org,codeberg.org",
)
GITHUB_APP_ID = _text("DOCORA_GITHUB_APP_ID", "", "the id, or client id, of the operator's GitHub App")
GITHUB_APP_PRIVATE_KEY = _secret(
    "DOCORA_GITHUB_APP_PRIVATE_KEY", "its private key (PEM; line breaks may be written as \\n)", shown=""
)
GITHUB_APP_PRIVATE_KEY_FILE = _file("DOCORA_GITHUB_APP_PRIVATE_KEY_FILE", "the same as the path of a file")
GITHUB_APP_WEBHOOK_SECRET = _long_secret(
    "DOCORA_GITHUB_APP_WEBHOOK_SECRET",
    "the secret of its webhook, which GitHub then sends to /hooks/github-app; without it there is no such hook",
)
GITHUB_APP_API_URL = _text(
    "DOCORA_GITHUB_APP_API_URL",
    "https://api.github.com",
    "the API that it belongs to; of an Enterprise server https://HOST/api/v3",
    kind="a URL",
)
LOG_LEVEL = _text("DOCORA_LOG_LEVEL", "INFO", "the least level that is logged", kind="a level such as INFO")
LOG_FORMAT = _text(
    "DOCORA_LOG_FORMAT",
    "auto",
    "how log lines look: `pretty` text, one `json` object each, or `auto`, which is text on a terminal alone",
    kind="auto, pretty or json",
)
SCAN_INTERVAL = _seconds("SCAN_INTERVAL", 60, "pause between two ticks of the scheduler")
RESCAN_INTERVAL = _seconds("RESCAN_INTERVAL", 300, "longest pause between two looks at one repository")
HOOKED_RESCAN_INTERVAL = _seconds(
    "DOCORA_HOOKED_RESCAN_INTERVAL",
    0,
    "shortest pause between two planned looks at a repository whose hooks arrive; 0: as for the others",
    zero=True,
)
MIN_RESCAN_INTERVAL = _seconds(
    "DOCORA_MIN_RESCAN_INTERVAL", 60, "shortest pause between two looks, for a repository that has just changed"
)
SCAN_BACKLOG = _integer(
    "DOCORA_SCAN_BACKLOG",
    2000,
    "planned looks that may wait in the queue; what is due beyond them waits in the database",
)
LOOKS_PER_HOST = _integer(
    "DOCORA_LOOKS_PER_HOST", 20, "questions for a tip that one scheduler puts to one git host at the same time"
)
FETCHES_PER_HOST = _integer("DOCORA_FETCHES_PER_HOST", 8, "clones and fetches from one git host at the same time")
SCAN_CONCURRENCY = _integer("SCAN_CONCURRENCY", 5, "snapshot workers that `manage.py up` starts")
DELIVERY_CONCURRENCY = _integer("DELIVERY_CONCURRENCY", 5, "delivery workers that `manage.py up` starts")
URGENT_CONCURRENCY = _integer(
    "DOCORA_URGENT_CONCURRENCY", 2, "workers that `manage.py up` keeps for hooks alone: their looks and deliveries"
)
SLOW_DELIVERY_CONCURRENCY = _integer(
    "SLOW_DELIVERY_CONCURRENCY", 1, "workers for endpoints that hang, which `manage.py up` starts beside the others"
)
WEB_CONCURRENCY = _integer("WEB_CONCURRENCY", 2, "web processes that `manage.py up` starts")
WEB_THREADS = _integer(
    "DOCORA_WEB_THREADS",
    16,
    "requests that one web process answers at a time; three quarters of them may be waiting for others",
)
STOP_GRACE = _seconds(
    "DOCORA_STOP_GRACE", 20, "how long running jobs may finish when `manage.py up` is stopped", zero=True
)
MAX_RETRY_ATTEMPTS = _integer(
    "MAX_RETRY_ATTEMPTS",
    5,
    "attempts in a row before a watch counts as failed; it is tried again later all the same",
)
RETRY_BASE_DELAY = _seconds("RETRY_BASE_DELAY", 1, "pause before the first retry; it doubles with each further one")
CIRCUIT_BREAKER_THRESHOLD = _integer(
    "CIRCUIT_BREAKER_THRESHOLD", 5, "git failures in a row after which a repository is left alone"
)
CIRCUIT_BREAKER_COOLDOWN = _seconds("CIRCUIT_BREAKER_COOLDOWN", 1800, "how long it is left alone before one probe")
REPO_LOCK_TTL = _seconds("REPO_LOCK_TTL", 120, "life of a lock whose holder is dead; renewed while it lives")
REPO_LOCK_WAIT = _seconds("REPO_LOCK_WAIT", 60, "how long a job waits for a lock before it is retried later", zero=True)
GIT_TIMEOUT = _seconds("DOCORA_GIT_TIMEOUT", 3600, "longest time that one clone or fetch may take")
GIT_ASK_TIMEOUT = _seconds("DOCORA_GIT_ASK_TIMEOUT", 20, "longest time that asking a remote for its tip may take")
GIT_STALL_TIMEOUT = _seconds(
    "DOCORA_GIT_STALL_TIMEOUT", 60, "how long a host may send next to nothing in the middle of a fetch"
)
GIT_CA_FILE = _file(
    "DOCORA_GIT_CA_FILE",
    "certificates (PEM) of the authorities that git hosts are checked with, in place of the system's",
)
CA_FILE = _file(
    "DOCORA_CA_FILE",
    "certificates (PEM) of the authorities that receivers are checked with, and git hosts unless `DOCORA_GIT_CA_FILE`"
    " says otherwise, in place of the system's",
)
HTTP_PROXY = _proxy(
    "DOCORA_HTTP_PROXY",
    "the forward proxy through which git hosts and receivers are reached, such as http://user:password@proxy:3128",
)
NO_PROXY: tuple[str | Network, ...] = _list(
    "DOCORA_NO_PROXY",
    "names, domains and networks",
    _name_or_network,
    (),
    "hosts that are dialled directly all the same: example.com and all below it, or addresses such as 10.1.0.0/16",
    shown="",
)
GIT_MEMORY_BYTES = _bytes(
    "DOCORA_GIT_MEMORY_BYTES", 1 << 30, "address space that one git process may take", least=128 << 20
)
GIT_CPU_SECONDS = _integer("DOCORA_GIT_CPU_SECONDS", 1800, "seconds of CPU time that one git process may take")
MAX_FILE_BYTES = _bytes("DOCORA_MAX_FILE_BYTES", 1 << 30, "a larger file is left out, with a record in its snapshot")
MAX_REPOSITORY_BYTES = _bytes(
    "DOCORA_MAX_REPOSITORY_BYTES", 20 << 30, "a repository whose files, packed, are larger is not fetched"
)
MAX_REPOSITORY_FILES = _integer(
    "DOCORA_MAX_REPOSITORY_FILES", 500_000, "of a repository with more files, or more folders, no snapshot is taken"
)
DISK_RESERVE_BYTES = _bytes(
    "DOCORA_DISK_RESERVE_BYTES",
    256 << 20,
    "nothing is fetched while fewer bytes are free where the clones are",
    least=0,
)
DISK_QUOTA_BYTES = _bytes(
    "DOCORA_DISK_QUOTA_BYTES",
    0,
    "room for all clones; beyond it, those out of use for longest go until they are needed again (0: no limit)",
    least=0,
)
DISK_LOW_PERCENT = _integer(
    "DOCORA_DISK_LOW_PERCENT", 10, "the operator is alerted while a smaller share is free where the clones are", most=90
)
RECONCILE_INTERVAL = _seconds("DOCORA_RECONCILE_INTERVAL", 3600, "pause between two rounds of `manage.py reconcile`")
ACCESS_PROOF_AGE = _seconds(
    "DOCORA_ACCESS_PROOF_AGE", 300, "how old the proof that a watch's token can read may be at a delivery"
)
WEBHOOK_TIMEOUT = _seconds("DOCORA_WEBHOOK_TIMEOUT", 30, "longest time that one webhook may take")
NOTICE_TIMEOUT = _seconds("DOCORA_NOTICE_TIMEOUT", 10, "longest time that one sync_failed notice may take")
SLOW_AFTER = _seconds(
    "DOCORA_SLOW_AFTER", 4, "an endpoint that takes longer to answer moves to the slow lane, until it answers in time"
)
ENDPOINT_PATIENCE_DAYS = _integer(
    "DOCORA_ENDPOINT_PATIENCE_DAYS", 5, "days after which an endpoint that accepts nothing is disabled"
)
DELIVERY_LOG_DAYS = _integer("DOCORA_DELIVERY_LOG_DAYS", 30, "days after which delivery attempts are forgotten")
ADMIN_LOG_DAYS = _integer("DOCORA_ADMIN_LOG_DAYS", 365, "days after which what was done in the admin is forgotten")
HISTORY_DAYS = _integer("DOCORA_HISTORY_DAYS", 30, "days for which the change feed can be read back")
BINARY_CHUNK_THRESHOLD_BYTES = _bytes(
    "BINARY_CHUNK_THRESHOLD_BYTES", 1048576, "a larger binary file is sent in pieces", least=0
)
BINARY_CHUNK_SIZE_BYTES = _bytes("BINARY_CHUNK_SIZE_BYTES", 524288, "characters of base64 in one piece")
TEXT_CHUNK_THRESHOLD_BYTES = _bytes(
    "TEXT_CHUNK_THRESHOLD_BYTES", 8388608, "a larger text file is sent in pieces, like a binary", least=0
)
EMAIL_HOST = _text("EMAIL_HOST", "", "the SMTP server for e-mails to the contacts of apps; empty: none are sent")
EMAIL_PORT = _integer("EMAIL_PORT", 25, "its port", most=65535)
EMAIL_USE_TLS = _boolean("EMAIL_USE_TLS", False, "encrypt the connection to it with STARTTLS")
EMAIL_HOST_USER = _text("EMAIL_HOST_USER", "", "the name to sign in with there")
EMAIL_HOST_PASSWORD = _secret("EMAIL_HOST_PASSWORD", "the password to sign in with there", shown="")
EMAIL_FROM = _text("DOCORA_EMAIL_FROM", "docora@localhost", "the sender of these e-mails")
ALERT_WEBHOOK = _url(
    "DOCORA_ALERT_WEBHOOK",
    "where the operator is told once that a circuit is open, an app disabled, a queue without a worker, a disk nearly"
    " full or Redis away, and once that it is over",
)
ALERT_WEBHOOK_KEY = _long_secret("DOCORA_ALERT_WEBHOOK_KEY", "signs these messages as those to apps are signed")
ALERT_EMAIL = _list(
    "DOCORA_ALERT_EMAIL", "e-mail addresses", _email, (), "who gets the same by e-mail; needs `EMAIL_HOST`", shown=""
)
