"""Those of production, with jobs that only a test asks a running service for."""

from docora.settings import *  # noqa: F403

JOB_FUNCTIONS = (*JOB_FUNCTIONS, "time.sleep", "subprocess.check_output")  # noqa: F405
