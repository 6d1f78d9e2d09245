"""The signature: over the very bytes that are sent, at the moment when they are sent.

While a key is being rotated there are two keys, or more if it is rotated again meanwhile. `webhook-signature` carries a
signature of each, so a receiver may know any of them. `X-Docora-Signature` has room for one: the new key's, until the
receiver refuses it and accepts an old one's. So a receiver that only knows the old key goes on working until the
overlap ends.
"""

import base64
import hmac
import time
from collections.abc import Sequence
from typing import Protocol


class Recipient(Protocol):
    """An app, or the endpoint of the operator, which may have no key and has no id."""

    @property
    def public_id(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    @property
    def signing_keys(self) -> list[str]: ...
    @property
    def max_in_flight(self) -> int: ...


class Signer:
    def __init__(self, app: Recipient) -> None:
        self._app_id = app.public_id
        # Each holds the state after its key, which is the same for every message.
        self._keys = [hmac.new(key.encode(), digestmod="sha256") for key in app.signing_keys]
        self.preferred = 0

    @property
    def alternatives(self) -> list[int]:
        """The keys to sign the X-Docora header with, the one to begin with first."""
        return [self.preferred, *(number for number in range(len(self._keys)) if number != self.preferred)]

    def headers(self, message_id: str, body: bytes, *, key: int = 0) -> dict[str, str]:
        now = str(int(time.time()))
        if not self._keys:
            return {"Content-Type": "application/json", "webhook-id": message_id, "webhook-timestamp": now}
        own = _signed(self._keys[key], f"{now}.", body).hexdigest()
        digests = [_signed(state, f"{message_id}.{now}.", body).digest() for state in self._keys]
        standard = [base64.b64encode(digest).decode() for digest in digests]
        return headers_of(self._app_id, message_id, now, own=own, standard=standard)


def headers_of(app_id: str, message_id: str, now: str, *, own: str, standard: Sequence[str]) -> dict[str, str]:
    """`own` is the signature in Docora's own header, `standard` are those of the Standard Webhooks specification."""
    return {
        "Content-Type": "application/json",
        "X-Docora-App-Id": app_id,
        "X-Docora-Timestamp": now,
        "X-Docora-Signature": f"sha256={own}",
        "webhook-id": message_id,
        "webhook-timestamp": now,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in standard),
    }


def _signed(key: hmac.HMAC, prefix: str, body: bytes) -> hmac.HMAC:
    signature = key.copy()
    signature.update(prefix.encode())
    signature.update(body)
    return signature
