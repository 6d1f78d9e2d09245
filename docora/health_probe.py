"""`python -m docora.health_probe`: exit status 0 while the web server of this machine answers. For container engines.

Without Django, because it is started every few seconds.
"""

import http.client
import os
import sys


def probe() -> bool:
    host = os.environ.get("DJANGO_ALLOWED_HOSTS", "").split(",")[0].strip().lstrip(".") or "127.0.0.1"
    bind = os.environ.get("DOCORA_BIND", "").strip()
    address = bind if bind not in ("", "0.0.0.0", "::") else "127.0.0.1"  # noqa: S104  compared, not bound
    connection = http.client.HTTPConnection(address, int(os.environ.get("PORT", "").strip() or 8000), timeout=4)
    try:
        # As the proxy in front would ask.
        connection.request("GET", "/health", headers={"Host": host, "X-Forwarded-Proto": "https"})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if probe() else 1)
