"""The settings of the tests: docora's own, on a data directory that is made and removed by the run.

TEST_DATABASE=sqlite (the default) or postgresql says which database the tests use.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests.support import memory_disk, postgres

memory_disk.use_for_temporary_files()
_home = Path(tempfile.mkdtemp(prefix="docora-tests-"))
atexit.register(shutil.rmtree, _home, ignore_errors=True)

for _name in [name for name in os.environ if name.startswith("DOCORA_") or name.endswith("_URL")]:
    if not _name.startswith("DOCORA_TEST_"):
        del os.environ[_name]
os.environ["DOCORA_DATA_DIR"] = str(_home)
# pytest-xdist's workers inherit the environment of the process that starts them, and so share its folder.
os.environ.setdefault("DOCORA_TEST_SHARED", str(_home))
if os.environ.get("TEST_DATABASE", "sqlite") == "postgresql":
    # It starts the server for its workers, too.
    if "DOCORA_TEST_POSTGRESQL" not in os.environ:
        os.environ["DOCORA_TEST_POSTGRESQL"] = postgres.start(_home / "postgresql")
    os.environ["DATABASE_URL"] = os.environ["DOCORA_TEST_POSTGRESQL"]

from docora.settings import *  # noqa: E402, F403  the environment had to be laid out first

JOB_FUNCTIONS = (  # jobs of the tests' own
    *JOB_FUNCTIONS,  # noqa: F405
    "builtins.abs",
    "time.sleep",
    "tests.support.horse_jobs.note",
    "tests.support.horse_jobs.note_and_come_rarely",
    "tests.support.horse_jobs.note_and_fail",
    "tests.support.horse_jobs.note_and_fill_memory",
    "tests.support.lock_jobs.fetch",
    "tests.repositories.repo_lock.test_retry.job",
)
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":  # noqa: F405
    # A file, as in production: in memory there is no WAL, and connections see each other's locks as errors.
    DATABASES["default"]["TEST"] = {"NAME": str(_home / "tests.sqlite3")}  # noqa: F405
