"""The signature: over the very bytes that are sent, at the moment when they are sent."""

import base64
import hashlib
import hmac
import time

from repositories.models import App


def headers(app: App, message_id: str, body: bytes) -> dict[str, str]:
    """Docora's own headers, and beside them those of the Standard Webhooks specification."""
    key, now = app.webhook_key.encode(), str(int(time.time()))
    own = hmac.new(key, f"{now}.".encode() + body, hashlib.sha256).hexdigest()
    standard = hmac.new(key, f"{message_id}.{now}.".encode() + body, hashlib.sha256).digest()
    return {
        "Content-Type": "application/json",
        "X-Docora-App-Id": app.public_id,
        "X-Docora-Timestamp": now,
        "X-Docora-Signature": f"sha256={own}",
        "webhook-id": message_id,
        "webhook-timestamp": now,
        "webhook-signature": f"v1,{base64.b64encode(standard).decode()}",
    }
