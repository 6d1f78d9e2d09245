"""`manage.py doctor`: everything that Docora stands on, each with what was found and the remedy.

It builds on `docora.condition`, and goes further than /ready may: it asks hosts, and takes its time. It is needed most
when something is down, so every check has a thread of its own and a deadline; one that hangs holds up nobody.
"""

import http.client
import os
import shutil
import socket
import sqlite3
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import redis
from cryptography import x509
from django.conf import settings
from django.db import DatabaseError, connection

from docora import condition, env
from docora.processes import preflight
from repositories.base import connections, network, outgoing, proxy, pulse, queue
from repositories.base.words import plural
from repositories.errors import DocoraError
from repositories.git.urls import RemoteUrl
from repositories.models import Repository

PATIENCE = 15.0
"""Seconds for all checks together: they run at the same time."""

_DIAL_SECONDS = 5.0
_OLDEST_REDIS = (6, 2)
_SLOW_REDIS = 0.02
_SKEW, _MUCH_SKEW = 2.0, 30.0
_FEW_DAYS = 14
_MANY_ROWS = 10_000


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    level: Level
    says: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Every finding, in the order of the checks, after PATIENCE seconds at most."""
    checks = [*_CHECKS.items(), *((f"git host {host}", partial(_git_host, host)) for host in settings.GIT_HOSTS)]
    found: dict[str, list[Finding]] = {}
    threads = [threading.Thread(target=_examine, args=(name, check, found), daemon=True) for name, check in checks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"no answer within {PATIENCE:g} s"
    return [
        finding
        for name, _ in checks
        for finding in found.get(name) or [_error(name, late, condition.HINTS.get(name, ""))]
    ]


def _examine(name: str, check: "Check", found: dict[str, list[Finding]]) -> None:
    try:
        findings = list(check(name))
    except redis.RedisError as error:
        findings = [_error(name, f"Redis does not answer: {preflight.one_line(error)}", condition.HINTS["redis"])]
    except DatabaseError as error:
        findings = [
            _error(name, f"the database does not answer: {preflight.one_line(error)}", condition.HINTS["database"])
        ]
    except Exception as error:  # one check that fails must not hide the others
        findings = [_error(name, f"could not be checked: {type(error).__name__}: {error}")]
    finally:
        connection.close()
    found[name] = findings


Check = Callable[[str], Iterator[Finding]]


def _ok(check: str, says: str) -> Finding:
    return Finding(check=check, level=Level.OK, says=says)


def _warning(check: str, says: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.WARNING, says=says, remedy=remedy)


def _error(check: str, says: str, remedy: str = "") -> Finding:
    return Finding(check=check, level=Level.ERROR, says=says, remedy=remedy)


def _git(name: str) -> Iterator[Finding]:
    try:
        yield _ok(name, preflight.check_git())
    except preflight.StartError as error:
        yield _error(name, str(error), "Install git from your system's packages.")


def _condition(name: str) -> Iterator[Finding]:
    """What /ready says."""
    outcome = condition.outcome(name)
    cause = {condition.NO_DATABASE: "database", condition.NO_REDIS: "redis"}.get(outcome, name)
    yield _ok(name, outcome) if outcome == "ok" else _error(name, outcome, condition.HINTS[cause])


def _database(name: str) -> Iterator[Finding]:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            path = Path(str(connection.settings_dict["NAME"]))
            size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
            yield _ok(name, f"SQLite {sqlite3.sqlite_version}, {_megabytes(size)} in {path}")
            return
        cursor.execute("SELECT current_setting('server_version'), pg_database_size(current_database())")
        version, size = cursor.fetchone()
    yield _ok(name, f"PostgreSQL {version}, {_megabytes(size)} in {connection.settings_dict['NAME']}")


def _statistics(name: str) -> Iterator[Finding]:
    """PostgreSQL plans without statistics as if every table were small."""
    if connection.vendor == "sqlite":
        yield _ok(name, "SQLite: the queries have indexes that it chooses without statistics")
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_stat_user_tables WHERE n_live_tup > %s"
            " AND coalesce(last_analyze, last_autoanalyze) IS NULL ORDER BY 1",
            [_MANY_ROWS],
        )
        without = [row[0] for row in cursor.fetchall()]
    if without:
        yield _warning(name, f"there are none for {', '.join(without)}", "Run ANALYZE, and see that autovacuum is on.")
    else:
        yield _ok(name, "there are statistics for every large table")


def _redis(name: str) -> Iterator[Finding]:
    client = connections.connect_impatiently(timeout=3)
    info: dict[str, Any] = client.info()
    product = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    if tuple(map(int, str(info["redis_version"]).split(".")[:2])) < _OLDEST_REDIS:
        wanted = ".".join(map(str, _OLDEST_REDIS))
        yield _error(name, f"{product} is too old", f"Install version {wanted} or newer.")
    else:
        yield _ok(name, f"{product}, {_megabytes(int(info['used_memory']))} of memory in use")
    yield _latency(f"{name} latency", client)
    yield _persistence(f"{name} persistence", info)
    yield _eviction(f"{name} eviction", info)


def _latency(name: str, client: redis.Redis) -> Finding:
    taken = []
    for _ in range(7):
        started = time.perf_counter()
        client.ping()
        taken.append(time.perf_counter() - started)
    median = statistics.median(taken)
    says = f"{median * 1000:.1f} ms for a question and its answer"
    if median > _SLOW_REDIS:
        return _warning(name, says, "Put it nearer: each job asks it dozens of times.")
    return _ok(name, says)


def _persistence(name: str, info: dict[str, Any]) -> Finding:
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            return _error(name, "its log could not be written the last time", "See its disk, and its own log.")
        return _ok(name, "every write goes to its log (appendonly)")
    remedy = "Set appendonly yes. Until then a restart of it loses what waits; the scheduler asks again for it."
    return _warning(name, "no log of its writes (appendonly no)", remedy)


def _eviction(name: str, info: dict[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy == "noeviction":
        return _ok(name, "nothing is thrown away for want of memory (noeviction)")
    remedy = "Set maxmemory-policy noeviction: else jobs and locks vanish when the memory is full."
    says = f"maxmemory-policy is {policy}"
    return _error(name, says, remedy) if info.get("maxmemory") else _warning(name, f"{says}, without a limit", remedy)


def _disk(name: str) -> Iterator[Finding]:
    for setting, folder in (("DOCORA_DATA_DIR", settings.DATA_DIR), ("REPOS_BASE_PATH", settings.REPOS_BASE_PATH)):
        place = next(path for path in (folder, *folder.parents) if path.exists())
        usage, inodes = shutil.disk_usage(place), os.statvfs(place)
        says = f"{folder}: {_megabytes(usage.free)} free, {usage.free * 100 // usage.total} %"
        check = f"{name} {setting}"
        if not os.access(place, os.W_OK | os.X_OK):
            yield _error(
                check, f"{folder} cannot be written by this user", f"Run this as Docora's user, or see {setting}."
            )
        elif usage.free < settings.DISK_RESERVE_BYTES:
            yield _error(
                check, says, "Nothing is fetched before more is free: make room, or see DOCORA_DISK_QUOTA_BYTES."
            )
        elif usage.free < 3 * settings.DISK_RESERVE_BYTES or usage.free * 20 < usage.total:
            yield _warning(check, says, "Make room, or set DOCORA_DISK_QUOTA_BYTES, before nothing can be fetched.")
        elif inodes.f_files and inodes.f_favail * 20 < inodes.f_files:
            yield _warning(check, f"{folder}: fewer than 5 % of the inodes are free", "Make room: many small files.")
        else:
            yield _ok(check, says)


def _redis_clock(name: str) -> Iterator[Finding]:
    client = connections.connect_impatiently(timeout=3)
    before = time.time()
    seconds, microseconds = client.time()
    yield _skew(name, (before + time.time()) / 2 - (seconds + microseconds / 1e6))


def _database_clock(name: str) -> Iterator[Finding]:
    if connection.vendor == "sqlite":
        yield _ok(name, "SQLite uses the clock of this machine")
        return
    with connection.cursor() as cursor:
        before = time.time()
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        theirs = float(cursor.fetchone()[0])
    yield _skew(name, (before + time.time()) / 2 - theirs)


def _skew(name: str, seconds: float) -> Finding:
    says = f"this machine is {abs(seconds):.3f} s {'ahead' if seconds > 0 else 'behind'}"
    remedy = "Let every machine follow the same time server (chrony, systemd-timesyncd)."
    if abs(seconds) > _MUCH_SKEW:
        return _error(name, says, remedy)
    return _warning(name, says, remedy) if abs(seconds) > _SKEW else _ok(name, says)


def _workers(name: str) -> Iterator[Finding]:
    client = connections.connect_impatiently(timeout=3)
    for queue_name in queue.ALL:
        number = pulse.count_workers(queue_name, connection=client)
        check = f"{name} {queue_name}"
        if number:
            yield _ok(check, f"{number} at work; waiting: {plural(queue.length(queue_name), 'job')}")
        else:
            yield _error(
                check, "nobody takes this queue", f"Start one: manage.py up, or manage.py rqworker {queue_name}."
            )


def _git_host(address: str, name: str) -> Iterator[Finding]:
    """As a fetch would reach it. A host that fails is an error only if a repository on it is watched."""
    try:
        is_plain, is_used = (
            Repository.objects.filter(url__startswith=f"{scheme}://{address}/").exists() for scheme in ("http", "https")
        )
    except DatabaseError:
        is_plain, is_used = False, True
    is_plain = is_plain and not is_used
    url = RemoteUrl.parse(f"{'http' if is_plain else 'https'}://{address}/owner/name")
    unwell = _error if is_used or is_plain else _warning
    try:
        expires = _dial(url, is_plain=is_plain)
    except (DocoraError, OSError) as error:
        says = str(error) if isinstance(error, DocoraError) else outgoing.explain(error, address)
        yield unwell(name, says, "See its name, DOCORA_TRUSTED_NETWORKS, DOCORA_HTTP_PROXY, DOCORA_GIT_CA_FILE.")
        return
    if expires is None:
        yield _ok(name, "it answers, over plain http")
    else:
        yield _expiry(name, "it answers; its certificate", expires, remedy="Its operator must renew it.")


def _dial(url: RemoteUrl, *, is_plain: bool) -> datetime | None:
    """The end of the certificate of a host that answers over TLS."""
    if is_plain:
        _connect(url).close()
        return None
    trusted = ssl.create_default_context(cafile=settings.GIT_CA_FILE)
    with _connect(url) as plain, trusted.wrap_socket(plain, server_hostname=url.host) as secure:
        certificate = secure.getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(certificate or b"").not_valid_after_utc


def _connect(url: RemoteUrl) -> socket.socket:
    through = proxy.for_host(url.host)
    if through is None:
        address = network.resolve(url.host, url.port)[0]
        return socket.create_connection((address, url.port), timeout=_DIAL_SECONDS)
    proxy.check_target(url.host, plain=False)
    way = http.client.HTTPConnection(proxy.resolve(through)[0], through.port, timeout=_DIAL_SECONDS)
    way.set_tunnel(url.host, url.port, headers=through.headers)
    way.connect()
    return way.sock


def _proxy(name: str) -> Iterator[Finding]:
    through = proxy.configured()
    if through is None:
        yield _ok(name, "not set: hosts and receivers are dialled directly")
        return
    remedy = "See DOCORA_HTTP_PROXY, and whether the proxy runs."
    try:
        with socket.create_connection((proxy.resolve(through)[0], through.port), timeout=_DIAL_SECONDS):
            yield _ok(name, f"{through.url} takes connections")
    except (DocoraError, OSError) as error:
        yield _error(name, f"{through.url}: {error}", remedy)


def _certificates(name: str) -> Iterator[Finding]:
    """The authorities of one's own."""
    files = {"DOCORA_GIT_CA_FILE": settings.GIT_CA_FILE, "DOCORA_CA_FILE": settings.CA_FILE}
    for setting, file in files.items():
        if file is None:
            yield _ok(f"{name} {setting}", "not set: the system's authorities")
            continue
        try:
            ends = [each.not_valid_after_utc for each in x509.load_pem_x509_certificates(file.read_bytes())]
        except (OSError, ValueError) as error:
            yield _error(f"{name} {setting}", f"{file}: {error}", "It must be a file of certificates in PEM.")
            continue
        yield _expiry(
            f"{name} {setting}", f"{file}: {plural(len(ends), 'certificate')}; the first", min(ends), remedy="Renew it."
        )


def _expiry(name: str, what: str, expires: datetime, *, remedy: str) -> Finding:
    days = (expires - datetime.now(UTC)).days
    says = f"{what} is valid until {expires:%Y-%m-%d}"
    if days < 0:
        return _error(name, f"{what} has expired on {expires:%Y-%m-%d}", remedy)
    return _warning(name, f"{says}, {plural(days, 'day')}", remedy) if days < _FEW_DAYS else _ok(name, says)


def _web(name: str) -> Iterator[Finding]:
    """What stands in front of the web server."""
    if env.SECURE and not settings.TRUSTED_PROXIES:
        says = "DOCORA_SECURE is on, and no proxy is named in DOCORA_TRUSTED_PROXIES"
        yield _warning(name, says, "Name it: without that all clients share its address, and the limits by address.")
    else:
        names = ", ".join(map(str, settings.TRUSTED_PROXIES)) or "none"
        yield _ok(name, f"proxies in front that are believed: {names}")


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


_CHECKS: dict[str, Check] = {
    "git": _git,
    "database": _condition,
    "database server": _database,
    "database clock": _database_clock,
    "statistics": _statistics,
    "migrations": _condition,
    "keys": _condition,
    "redis": _condition,
    "redis server": _redis,
    "redis clock": _redis_clock,
    "workers": _workers,
    "jobs": _condition,
    "scheduler": _condition,
    "disk": _disk,
    "proxies in front": _web,
    "forward proxy": _proxy,
    "certificates": _certificates,
}
