"""Secrets that come back from outside, whole, encoded or cut."""

import base64
from urllib.parse import quote

import pytest

from repositories.base.redaction import redact

# Its end has what becomes `+` and `/` in base64, closer to each other than the pieces that are hidden.
TOKEN = "ghp_Zq7/x+Wm2Kd9:Rt4Vb8Ny1Lc6xab?cd>ef~gh?"
CREDENTIALS = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
OTHER_CREDENTIALS = base64.b64encode(f"oauth2:{TOKEN}".encode()).decode()
URL_SAFE_CREDENTIALS = CREDENTIALS.replace("+", "-").replace("/", "_")


@pytest.mark.parametrize(
    "echoed",
    [
        pytest.param(TOKEN, id="as it is"),
        pytest.param(TOKEN.upper(), id="in upper case"),
        pytest.param(f"Authorization: Basic {CREDENTIALS}", id="the header"),
        pytest.param(f"you sent Basic {CREDENTIALS}", id="its value"),
        pytest.param(CREDENTIALS[24:], id="the end of its value"),
        pytest.param(CREDENTIALS[:40], id="its value, cut"),
        pytest.param(OTHER_CREDENTIALS, id="behind another user's name"),
        pytest.param(URL_SAFE_CREDENTIALS, id="in URL-safe base64"),
        pytest.param(base64.b64encode(TOKEN.encode()).decode(), id="in base64 alone"),
        pytest.param(quote(TOKEN, safe=""), id="URL-encoded"),
        pytest.param(f"https://{quote(TOKEN, safe='')}@host/x", id="in a URL"),
        pytest.param(TOKEN.encode().hex(), id="in hexadecimal"),
        pytest.param(TOKEN[:12], id="its beginning"),
        pytest.param(TOKEN[12:], id="its end"),
        pytest.param(" ".join(TOKEN[n : n + 7] for n in range(0, len(TOKEN), 7)), id="in words"),
        pytest.param("\n".join(CREDENTIALS[n : n + 16] for n in range(0, len(CREDENTIALS), 16)), id="in lines"),
    ],
)
def test_no_form_of_a_token_is_left(echoed: str) -> None:
    text = redact(f"fatal: remote error: {echoed} is bad", TOKEN)
    # What a user's name becomes in base64 is no secret, only what stands behind it.
    in_base64 = (CREDENTIALS[20:], OTHER_CREDENTIALS[10:], URL_SAFE_CREDENTIALS[20:])
    for form in (TOKEN, *in_base64, quote(TOKEN, safe=""), TOKEN.encode().hex()):
        assert [form[n : n + 6] for n in range(len(form) - 5) if form[n : n + 6].lower() in text.lower()] == []
    assert text.startswith("fatal: remote error: ")


def test_what_is_no_secret_stays() -> None:
    said = "fatal: unable to access 'https://host/acme/handbook/': The requested URL returned error: 500"
    assert redact(said, TOKEN) == said


def test_credentials_in_urls_and_headers_go_without_knowing_them() -> None:
    assert redact("see https://user:password@host/x") == "see https://host/x"
    assert redact("you sent Authorization: Bearer abc and more") == "you sent [hidden]"


def test_a_short_secret_is_hidden_as_a_whole() -> None:
    assert redact("the word is abc.", "abc") == "the word is [hidden]."
