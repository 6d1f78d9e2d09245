"""Whether a hook comes from somebody who knows its secret: the forms of proof that git hosts send.

    GitHub          X-Hub-Signature-256    `sha256=` and the HMAC-SHA256 of the body in hex
    Bitbucket       X-Hub-Signature        the same
    Gitea, Forgejo  X-Gitea-Signature,     the same without `sha256=`
                    X-Forgejo-Signature
    GitLab          X-Gitlab-Token         the secret itself
                    webhook-signature      Standard Webhooks: the HMAC of `id.timestamp.body` in base64, with the
                                           headers webhook-id and webhook-timestamp

Any valid one counts. Every secret is tried with every form, without stopping at the first that fits, so the time that
it takes tells nothing.
"""

import base64
import binascii
import hmac
import time
from collections.abc import Iterator, Mapping, Sequence

_HEX = ("X-Hub-Signature-256", "X-Hub-Signature", "X-Gitea-Signature", "X-Forgejo-Signature")
# Seconds by which the timestamp of a signature may differ from our clock.
_TOLERANCE = 300
_MOST_SIGNATURES = 8


class Proofs:
    """Give it the body piece by piece with `update`, then ask `hold`."""

    def __init__(self, headers: Mapping[str, str], hook_secrets: Sequence[str]) -> None:
        self._headers = headers
        self._secrets = [secret.encode() for secret in hook_secrets]
        self._plain = [hmac.new(secret, digestmod="sha256") for secret in self._secrets]
        self._standard = [hmac.new(key, _prefix(headers), "sha256") for key in self._standard_keys()]

    def update(self, piece: bytes) -> None:
        for digest in (*self._plain, *self._standard):
            digest.update(piece)

    def hold(self) -> bool:
        return any(list(self._comparisons()))

    def _comparisons(self) -> Iterator[bool]:
        signatures = [self._headers.get(name, "").removeprefix("sha256=").lower().encode() for name in _HEX]
        for digest in self._plain:
            expected = digest.hexdigest().encode()
            for signature in signatures:
                yield hmac.compare_digest(expected, signature)
        token = self._headers.get("X-Gitlab-Token", "").encode()
        for secret in self._secrets:
            yield hmac.compare_digest(secret, token)
        for digest in self._standard:
            expected = base64.b64encode(digest.digest())
            for signature in _standard_signatures(self._headers):
                yield hmac.compare_digest(expected, signature)

    def _standard_keys(self) -> Iterator[bytes]:
        """`whsec_` and base64 stand for the key's bytes; a host may also take the whole text for the key."""
        if not _is_fresh(self._headers.get("webhook-timestamp", "")):
            return
        for secret in self._secrets:
            yield secret
            try:
                yield base64.b64decode(secret.removeprefix(b"whsec_"), validate=True)
            except binascii.Error:
                continue


def _prefix(headers: Mapping[str, str]) -> bytes:
    return f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}.".encode()


def _is_fresh(timestamp: str) -> bool:
    return timestamp.isdecimal() and len(timestamp) < 16 and abs(time.time() - int(timestamp)) <= _TOLERANCE


def _standard_signatures(headers: Mapping[str, str]) -> list[bytes]:
    """Several while the host changes its secret; of version 1 alone."""
    words = headers.get("webhook-signature", "").split(" ")[:_MOST_SIGNATURES]
    return [word.removeprefix("v1,").encode() for word in words if word.startswith("v1,")]
