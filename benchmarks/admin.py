"""Every page of the admin with 1,000 apps, 10,000 repositories and 1,000,000 delivered files.

    make bench-admin

Each page is asked for by a signed-in superuser through the whole of Django, with a real Valkey behind it. The first
number is the first request after the start, with nothing remembered; the second the median of the ones after it; the
third the processor time in the web process, which a busy machine changes little.
The reference in the same run is the login page, which touches no data.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATABASES = ("sqlite", "postgresql")
ROUNDS = 9
LIMIT = 0.3
PAGES = {
    "login (reference)": "/admin/login/",
    "overview": "/admin/",
    "apps": "/admin/repositories/app/",
    "apps, searched": "/admin/repositories/app/?q=cedar",
    "app": "/admin/repositories/app/3/change/",
    "app, delete": "/admin/repositories/app/3/do/remove/",
    "repositories": "/admin/repositories/repository/",
    "repositories, searched": "/admin/repositories/repository/?q=harbor",
    "repositories, open circuits": "/admin/repositories/repository/?state=open",
    "repository": "/admin/repositories/repository/12/change/",
    "watches": "/admin/repositories/watch/",
    "watches, searched": "/admin/repositories/watch/?q=cedar",
    "watches, failed": "/admin/repositories/watch/?status__exact=failed",
    "watches, with parked files": "/admin/repositories/watch/?parked=yes",
    "watch": "/admin/repositories/watch/4/change/",
    "snapshots": "/admin/snapshots/snapshot/",
    "snapshots, searched": "/admin/snapshots/snapshot/?q=harbor",
    "snapshot": "/admin/snapshots/snapshot/1/change/",
    "deliveries": "/admin/snapshots/delivery/",
    "deliveries, searched": "/admin/snapshots/delivery/?q=cedar",
    "deliveries, refused": "/admin/snapshots/delivery/?outcome=refused",
    "deliveries, all": "/admin/snapshots/delivery/?when=all",
    "deliveries, last page": "/admin/snapshots/delivery/?when=all&p=200",
    "deliveries of an app": "/admin/snapshots/delivery/?watch__app__id__exact=3&when=all",
    "deliveries, all, searched": "/admin/snapshots/delivery/?when=all&q=handbook-41.md",
    "delivery": "/admin/snapshots/delivery/61/change/",
    "parked": "/admin/snapshots/parked/",
    "log of actions": "/admin/admin/logentry/",
    "queue": "/admin/django_rq/dashboard/",
}


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    for database in DATABASES:
        with tempfile.TemporaryDirectory(prefix="docora-bench-") as folder:
            environment = {**os.environ, "DOCORA_DATA_DIR": folder}
            subprocess.run([sys.executable, "-m", "benchmarks.admin", database], env=environment, check=True)


def measure(database: str) -> None:
    folder = Path(os.environ["DOCORA_DATA_DIR"])
    if database == "postgresql":
        from tests.support import postgres

        os.environ["DATABASE_URL"] = postgres.start(folder / "postgresql")
    os.environ["DJANGO_SETTINGS_MODULE"] = "docora.settings"
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    from benchmarks.populate import populate
    from docora.processes import valkey

    settings.ALLOWED_HOSTS.append("testserver")
    server = valkey.start(settings.REDIS_SOCKET, persistent=False)
    try:
        call_command("migrate", verbosity=0)
        populate()
        report(database)
    finally:
        server.terminate()
        server.wait(timeout=10)


def report(database: str) -> None:
    from django.contrib.auth.models import User
    from django.db import connection, reset_queries
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    stranger, admin = Client(), Client()
    admin.force_login(User.objects.create_superuser("admin"))
    print(f"\n{database:32} {'first':>10}{'median':>10}{'CPU':>10} {'queries':>8}")
    slow = []
    for name, url in PAGES.items():
        times: list[float] = []
        work: list[float] = []
        client = stranger if "reference" in name else admin
        for _ in range(ROUNDS):
            started, busy = time.perf_counter(), time.process_time()
            answer = client.get(url, follow=True)
            times.append(time.perf_counter() - started)
            work.append(time.process_time() - busy)
            if answer.status_code != 200:
                sys.exit(f"{url} answers {answer.status_code}")
        reset_queries()
        with CaptureQueriesContext(connection) as queries:
            client.get(url, follow=True)
        usual = statistics.median(times[1:])
        slow += [name] if usual > LIMIT else []
        numbers = (times[0], usual, statistics.median(work))
        print(f"  {name:30} {''.join(f'{number * 1000:7.0f} ms' for number in numbers)} {len(queries):8}")
    print(f"  above {LIMIT * 1000:.0f} ms: {', '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()
