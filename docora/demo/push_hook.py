"""The push hook of a git host, as GitHub sends it."""

import hashlib
import hmac
import json
import urllib.error
import urllib.request


def message(secret: str, *, path: str, commit: str, branch: str = "main") -> tuple[dict[str, str], bytes]:
    """The headers and the body that tell of a push."""
    payload = {
        "ref": f"refs/heads/{branch}",
        "after": commit,
        "deleted": False,
        "repository": {"full_name": path, "default_branch": branch},
    }
    body = json.dumps(payload).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "push",
        "X-Hub-Signature-256": f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}",
    }
    return headers, body


def send(url: str, secret: str, *, path: str, commit: str, branch: str = "main") -> int:
    """Tell the URL that a commit was pushed; returns the status of the answer."""
    headers, body = message(secret, path=path, commit=commit, branch=branch)
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310  our own server
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  the same
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        return error.code
