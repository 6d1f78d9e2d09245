"""The environment that git is started with: a hardened configuration, and credentials nowhere else."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass

from django.conf import settings

from repositories.base import network, proxy, redaction
from repositories.git.urls import RemoteUrl

# What git may see of this process's environment: to be found, and to find its libraries and certificates.
# The last is no secret: by it the supervisor finds a git whose worker was killed.
_PASSED_ON = {"PATH", "LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_DIR", "SSL_CERT_FILE", "DOCORA_PROCESS"}
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ASKPASS": "",
    "GIT_OPTIONAL_LOCKS": "0",
    "HOME": os.devnull,
    "SSH_ASKPASS": "",
    "LC_ALL": "C",
}
_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.askPass": "",
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "transfer.fsckObjects": "true",
    "protocol.allow": "never",
    "protocol.https.allow": "always",
    # Git would follow to any address: `ask` follows by itself, where it may.
    "http.followRedirects": "false",
    "http.proxy": "",
    "http.sslVerify": "true",
    # One pack per fetch, complete or not there at all; a killed unpack-objects would leave half of the files.
    "fetch.unpackLimit": "1",
    # Large contents are streamed, and packs are mapped a piece at a time: memory does not grow with them.
    "core.bigFileThreshold": "8m",
    "core.packedGitWindowSize": "1m",
    "core.packedGitLimit": "8m",
    # So much git keeps of contents that others are stored as differences to. With 16 MB, 10,000 texts in chains of such
    # differences took ten times as long to read as with the 96 MB that git takes by itself.
    "core.deltaBaseCacheLimit": str(min(96 << 20, settings.GIT_MEMORY_BYTES // 4)),
    "pack.threads": "2",
    # The volume is shared, so the clone may belong to another user's worker.
    "safe.directory": "*",
}
# Harmless flaws of old commits, which would keep many a real repository from being watched.
_FORGIVEN = (
    "badEmail", "badTimezone", "missingEmail", "missingNameBeforeEmail", "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail", "multipleAuthors", "zeroPaddedDate", "zeroPaddedFilemode",
)  # fmt: skip
_CONFIG |= {f"fetch.fsck.{flaw}": "ignore" for flaw in _FORGIVEN}
_TOKEN_USERS = {"gitlab.com": "oauth2", "bitbucket.org": "x-token-auth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where to fetch from, and with which token."""

    url: RemoteUrl
    token: str = ""

    def environment(self) -> dict[str, str]:
        plain = self.url.scheme == "http"
        config = {
            **_CONFIG,
            **self._pinned_addresses(plain=plain),
            # A host that sends next to nothing for so long is down.
            "http.lowSpeedLimit": "1000",
            "http.lowSpeedTime": str(max(1, round(settings.GIT_STALL_TIMEOUT))),
        }
        if settings.GIT_CA_FILE:
            config["http.sslCAInfo"] = str(settings.GIT_CA_FILE)
        if plain:
            config["protocol.http.allow"] = "always"
        if self.token:
            config[f"http.{self.url.base}/.extraHeader"] = f"Authorization: {self.authorization}"
        return _environment(config)

    def _pinned_addresses(self, *, plain: bool) -> dict[str, str]:
        """Git dials the addresses that were checked, and no others: the host's, or the proxy's."""
        if through := proxy.for_host(self.url.host):
            proxy.check_target(self.url.host, plain=plain)
            pinned = f"{through.host}:{through.port}:{','.join(proxy.resolve(through))}"
            return {"http.proxy": through.secret_url, "http.proxyAuthMethod": "basic", "http.curloptResolve": pinned}
        addresses = network.resolve(self.url.host, self.url.port, plain=plain)
        return {"http.curloptResolve": f"{self.url.host}:{self.url.port}:{','.join(addresses)}"}

    @property
    def authorization(self) -> str:
        """The value of the header by which a host knows the token; for `url.base` alone."""
        user = _TOKEN_USERS.get(self.url.host, "x-access-token")
        return "Basic " + base64.b64encode(f"{user}:{self.token}".encode()).decode()

    def at(self, url: RemoteUrl) -> "Remote":
        """The same repository at another address; the token is for the host that it was given for."""
        return self if url == self.url else Remote(url=url, token=self.token if url.base == self.url.base else "")

    def redact(self, text: str) -> str:
        """What git printed, and with it what the host said, without this remote's token and the proxy's password."""
        through = proxy.for_host(self.url.host)
        return redaction.redact(redaction.redact(text, self.token), through.password if through else "")


def blank(environment: Mapping[str, str]) -> dict[str, str]:
    """Empty values for all other variables of this process: GitPython starts git with a copy of every one of them."""
    return {name: "" for name in os.environ if name not in _PASSED_ON and name not in environment}


def _environment(config: dict[str, str]) -> dict[str, str]:
    numbered = {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (name, value) in enumerate(config.items()):
        numbered[f"GIT_CONFIG_KEY_{number}"] = name
        numbered[f"GIT_CONFIG_VALUE_{number}"] = value
    return {**_ENVIRONMENT, **numbered}


LOCAL = _environment(_CONFIG)
