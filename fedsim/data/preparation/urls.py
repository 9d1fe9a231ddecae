"""Domains of the URLs of texts."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from publicsuffixlist import PublicSuffixList


def host(url: str) -> str:
    """Return the host of a URL, or of a bare "host/path", in lower case; "" if there is none.

    The host is in ASCII (IDNA), so that a domain has one name; "" if it cannot be converted.
    """
    text = url.strip()
    try:
        hostname = urlsplit(text if "://" in text else f"//{text}").hostname or ""
        if not hostname.isascii():
            hostname = hostname.encode("idna").decode()
    except ValueError:  # an unfinished IPv6 address, a label that no domain has
        return ""
    return hostname.rstrip(".")


def base_domain(url: str) -> str:
    """Return the domain under the public suffix: "bbc.co.uk" of "https://news.bbc.co.uk/a".

    An IP address is its own base. Blogs on a service that is listed as a suffix are different
    domains. A host that is itself a suffix, and a missing host, give "".
    """
    name = host(url)
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return str(_suffixes().privatesuffix(name) or "") if name else ""


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()
