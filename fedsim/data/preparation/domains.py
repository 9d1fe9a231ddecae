"""Hosts and base domains of URLs, by the public suffix list that a package ships."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from publicsuffixlist import PublicSuffixList


def host(url: str) -> str:
    """Return the host of a URL, or of a bare "host/path", in lower case; "" if there is none."""
    text = url.strip()
    try:
        found = urlsplit(text if "://" in text else f"//{text}").hostname or ""
    except ValueError:  # an unfinished IPv6 address
        return ""
    return found.rstrip(".")


def base_domain(url: str) -> str:
    """Return the domain under the public suffix: "bbc.co.uk" of "https://news.bbc.co.uk/a".

    An IP address is its own base. Blogs of different people on one service, listed as suffixes,
    are different domains. A host that is itself a suffix, and no host at all, give "".
    """
    name = host(url)
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return str(_suffixes().privatesuffix(name) or "") if name else ""


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()
