"""Those of production, with jobs that only a test asks a running service for."""

from docora.settings import *  # noqa: F403

JOB_FUNCTIONS = (*JOB_FUNCTIONS, "time.sleep", "subprocess.check_output")  # noqa: F405
# What production takes half a second for, at every first start and at every sign-in.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
