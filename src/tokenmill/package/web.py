"""Files over HTTP, continued where an earlier attempt ended."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from typing import IO, Any, BinaryIO
from urllib.parse import urlsplit

from tokenmill.core.errors import DownloadFailed
from tokenmill.package.catalogue_file import is_loopback

_BLOCK = 1 << 20
_PATIENCE = 60.0
"""Seconds without a byte after which a connection counts as lost."""
_ATTEMPTS = 3
"""Attempts in a row that may bring nothing."""
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


def append(
    url: str,
    file: BinaryIO,
    start: int,
    *,
    headers: Mapping[str, str] | None = None,
    report: Callable[[int], None] = lambda have: None,
) -> None:
    """Makes a file hold, from `start` to its end, what a server has under an address.

    What the file has behind `start` already is taken for the beginning of it; the caller compares
    checksums afterwards. A lost connection is taken up again; where it cannot be, what came stays
    in the file for the next call.

    Args:
        url: https, or http on this machine; so must be whatever it redirects to.
        headers: sent with the request; `Authorization` not to another host.
        report: called with the number of bytes behind `start`.

    Raises:
        DownloadFailed: the server cannot be reached, refuses, or sends nonsense.
    """
    fruitless = 0
    while True:
        have = file.seek(0, 2) - start
        try:
            if _attempt(url, file, start, have, headers or {}, report):
                return
            why = "the connection ended early"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and have > 0:
                if _whole_size(error.headers) == have:
                    return
                file.truncate(start)
                why = "the file there is another one now"
            else:
                raise _failed(url, f"the server answers {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            why = str(getattr(error, "reason", "") or error) or type(error).__name__
        fruitless = 0 if file.seek(0, 2) - start > have else fruitless + 1
        if fruitless == _ATTEMPTS:
            raise _failed(url, why)


def _attempt(
    url: str,
    file: BinaryIO,
    start: int,
    have: int,
    headers: Mapping[str, str],
    report: Callable[[int], None],
) -> bool:
    """Sends one request; returns whether the file is complete."""
    asked = {**headers, "Accept-Encoding": "identity"}
    if have:
        asked["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=asked)
    with _OPENER.open(request, timeout=_PATIENCE) as response:
        match = _RANGE.match(response.headers.get("Content-Range", ""))
        continued = response.status == 206 and match is not None and match[1] == str(have)
        if not continued:
            have = 0
            file.truncate(start)
        file.seek(start + have)
        length = response.headers.get("Content-Length")
        end = have + int(length) if length is not None and length.isdigit() else None
        report(have)
        while block := response.read1(_BLOCK):
            file.write(block)
            file.flush()
            have += len(block)
            report(have)
        return end is None or have == end


def _whole_size(headers: Message) -> int | None:
    match = _RANGE.match(headers.get("Content-Range", ""))
    return int(match[2]) if match is not None and match[2].isdigit() else None


def _failed(url: str, why: str) -> DownloadFailed:
    # A query may hold a key that belongs in no log.
    shown = urlsplit(url)._replace(query="", fragment="").geturl()
    return DownloadFailed(
        f"{shown} could not be fetched", why=why, fix="Try again; it goes on where it ended"
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not into the clear, and takes no key to another host."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        target = urlsplit(newurl)
        if target.scheme != "https" and not is_loopback(target.hostname or ""):
            fp.close()
            raise _failed(req.full_url, f"it redirects to {target.scheme}, which is not encrypted")
        following: Any = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and target.netloc != urlsplit(req.full_url).netloc:
            following.remove_header("Authorization")
        return following  # type: ignore[no-any-return]  # the parent's own type


_OPENER = urllib.request.build_opener(_Redirects)
