"""Steps on URLs of the pages that texts come from."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from publicsuffixlist import PublicSuffixList
from pydantic import model_validator

from fedsim.data.preparation.step import Step
from fedsim.data.sources.records import Record
from fedsim.errors import about


def host(url: str) -> str:
    """Return the host of a URL, or of a bare "host/path", in lower case; "" if there is none.

    In ASCII (IDNA), so that a domain has one name; "" also where that cannot be.
    """
    try:
        hostname = _parts(url).hostname or ""
        if not hostname.isascii():
            hostname = hostname.encode("idna").decode()
    except ValueError:  # an unfinished IPv6 address, a label that no domain has
        return ""
    return hostname.rstrip(".")


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


class DropUrls(Step):
    """Drop the records whose URL is on a list: of domains, with all below them, or of pages.

    `file` holds one a line: a domain, or a URL with a path, compared without scheme, query,
    fragment and closing slash. Charles et al. 2024, App. G, filter a pre-training set so. Streams;
    in memory: the list.
    """

    step: Literal["drop-urls"] = "drop-urls"
    column: str = "url"
    domains: tuple[str, ...] = ()
    file: str | None = None

    @model_validator(mode="after")
    def _a_list(self) -> DropUrls:
        if not self.domains and self.file is None:
            raise ValueError("give domains, file or both")
        return self

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the records whose URL is not on the list, or that have none."""
        entries = [*self.domains, *self._listed()]
        pages = {_page(entry) for entry in entries}
        domains = {host(entry) for entry in entries if "/" not in _page(entry)} - {""}
        for record in records:
            url = str(record.columns[self.column] or "")
            if url and (_page(url) in pages or _parents(host(url)) & domains):
                dropped[self.reason("listed URL")] += 1
            else:
                yield record

    def _listed(self) -> list[str]:
        if self.file is None:
            return []
        with about(f"data.preparation: drop-urls: file = {self.file!r}: ", (OSError, ValueError)):
            lines = Path(self.file).expanduser().read_text(encoding="utf-8").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _page(url: str) -> str:
    try:
        parts = _parts(url)
    except ValueError:
        return url.strip()
    return (parts.netloc.lower() + parts.path).rstrip("/")


def _parts(url: str) -> SplitResult:
    text = url.strip()
    return urlsplit(text if "://" in text else f"//{text}")


def _parents(name: str) -> set[str]:
    """Return a host and every domain above it: "a.b.c" gives "a.b.c", "b.c" and "c"."""
    parts = name.split(".")
    return {".".join(parts[start:]) for start in range(len(parts))}
