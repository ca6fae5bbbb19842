"""Access to the dashboard: for anybody on this machine, or for those who have the token."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import urlsplit

from secureafl.core.errors import ConfigError

COOKIE = "secureafl_token"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")  # long enough not to be guessed, fit for a cookie


class Access(NamedTuple):
    """What a request must show to be answered."""

    token: str | None  # None: served to this machine alone, no token needed

    def refusal(self, headers: Mapping[str, str], query: Mapping[str, list[str]]) -> str:
        """Why a request is turned away; empty if it is not."""
        headers = {name.lower(): value for name, value in headers.items()}  # HTTP/2 writes them so
        if self.token is None:
            # Another site may point its own name at 127.0.0.1; its name is then in this header.
            own = is_loopback(_host(headers))
            return "" if own else "ask for this page by the address it was printed with"
        shown = [*query.get("token", []), _bearer(headers), _cookie(headers)]
        right = [hmac.compare_digest(one.encode(), self.token.encode()) for one in shown]
        return "" if any(right) else "this page needs its token: open the address as printed"


def access_to(host: str, token: str | None) -> Access:
    """What requests to this address must show."""
    if token is None and not is_loopback(host):
        raise ConfigError(f"host = {host!r}: others can reach it, so a token is needed")
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigError("the token is unfit: give 16 or more letters, digits, - or _")
    return Access(token)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(headers: Mapping[str, str]) -> str:
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _bearer(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
