"""Open the file system of a URL with fsspec, and convert errors of its libraries to errors with a hint."""

import asyncio
import importlib
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from analyzers.errors import InputError, WorkbenchError
from analyzers.words import size
from workbench.console import note
from workbench.remote.urls import scrubbed, without_credentials

Value = TypeVar("Value")


@dataclass
class Bounds:
    """What a server may cost: bytes of a page that is read as a whole, and seconds.

    The seconds are those of a page that is read as a whole, of any request, without any byte from a web server, and of
    all requests that list the files below an address.
    """

    page_bytes: int = 16 << 20
    page_s: float = 120
    request_s: float = 300
    silent_s: float = 30
    listing_s: float = 300


BOUNDS = Bounds()
Details = Mapping[str, object]
"""The properties that a file system reports of a file: `name`, `size`, `type`, and more that depend on the protocol."""
_PROTOCOL = re.compile(r"(?:^|(?<=::))([A-Za-z][A-Za-z0-9+.-]*)(?=://)")
_DISTRIBUTIONS = {"smbclient": "smbprotocol", "libarchive": "libarchive-c", "git": "gitpython"}
"""{module: the name under which pip installs it}, for modules where the two differ."""


class Vanished(Exception):  # never seen by a user
    """Raised if a file was deleted after it was listed; a running job may delete files."""


class FileSystem(Protocol):
    """The interface of fsspec's file systems; only the methods that are used here."""

    async_impl: bool
    """Whether several threads may use the file system at the same time; if not, it has one connection."""

    def ls(self, path: str, *, detail: bool) -> list[Details]:
        """Return the details of the files and folders in a folder."""
        ...

    def info(self, path: str) -> Details:
        """Return the details of a file or folder."""
        ...

    def open(self, path: str, mode: str) -> AbstractContextManager[IO[bytes]]: ...

    def invalidate_cache(self) -> None: ...


def open_file_system(url: str) -> tuple[FileSystem, str]:
    """Return (the file system of a URL, the path in this file system).

    Raises:
        InputError: The protocol is unknown, or its package is not installed.
    """
    try:
        import fsspec
    except ImportError:
        raise _missing_package(url, "fsspec", "torch-workbench[remote]") from None
    known = {*fsspec.available_protocols(), *fsspec.registry}
    if unknown := [name for name in _PROTOCOL.findall(url) if name.lower() not in known]:
        why = f"{without_credentials(url)}: {unknown[0]} is no known protocol"
        raise InputError(why, "known are file, s3, gs, abfs, https and others of fsspec")
    try:
        file_system, path = asking(url, lambda: fsspec.url_to_fs(url, **_web_options(url)))
    except ImportError as error:
        module = str(getattr(error.__cause__ or error, "name", None) or "its library").partition(".")[0]
        raise _missing_package(url, module, _DISTRIBUTIONS.get(module, module)) from None
    # fsspec keeps listings as long as the process lives, and a running job writes more files.
    file_system.invalidate_cache()
    return file_system, path


def _web_options(url: str) -> dict[str, dict[str, Any]]:
    """Return the options of fsspec for the web protocols in a URL.

    Redirects to other hosts are not followed: a server could point at a host that only this machine reaches. One file
    that the person named may move to another host by https, as on sites that keep large files elsewhere. What is read
    as a whole, such as a page that lists files, is bounded in size and time, as a server may send without end, or
    nothing at all.
    """
    web = {name.lower() for name in _PROTOCOL.findall(url)} & {"http", "https"}
    if not web:
        return {}
    told = set[str]()

    async def check(_session: object, _context: object, redirect: Any) -> None:
        here, there = urlsplit(str(redirect.url)), urlsplit(_redirect_target(redirect))
        if is_same_host(here, there) or (there.scheme == "https" and not url.endswith("/")):
            return
        if there.netloc not in told:
            told.add(there.netloc)
            note(f"note: {without_credentials(str(redirect.url))}: redirects to another host, which is not followed")
        raise PermissionError(f"redirects to another host ({there.hostname})")

    async def client(**options: Any) -> Any:
        aiohttp = importlib.import_module("aiohttp")

        class Response(aiohttp.ClientResponse):  # type: ignore[misc, name-defined]
            _body: bytes | None

            async def read(self) -> bytes:
                if self._body is None:
                    try:
                        async with asyncio.timeout(BOUNDS.page_s):
                            self._body = await self._read_bounded()
                    except BaseException:
                        self.close()
                        raise
                body: bytes = await super().read()
                return body

            async def _read_bounded(self) -> bytes:
                body = bytearray()
                async for chunk in self.content.iter_any():
                    body += chunk
                    if len(body) > BOUNDS.page_bytes:
                        raise InputError(
                            f"{without_credentials(str(self.url))}: a page of more than {size(BOUNDS.page_bytes)}",
                            "give the folder of one run",
                        )
                return bytes(body)

        watch = aiohttp.TraceConfig()
        watch.on_request_redirect.append(check)
        patience = aiohttp.ClientTimeout(
            total=BOUNDS.request_s, sock_connect=BOUNDS.silent_s, sock_read=BOUNDS.silent_s
        )
        given = {"timeout": patience, "response_class": Response} | options
        return aiohttp.ClientSession(trace_configs=[watch], **given)

    return {name: {"get_client": client} for name in web}


def _redirect_target(redirect: Any) -> str:
    headers = redirect.response.headers
    return urljoin(str(redirect.url), str(headers.get("Location") or headers.get("URI") or ""))


def is_same_host(here: SplitResult, there: SplitResult) -> bool:
    """Return whether two web addresses are of one server; it may change from http to https."""
    ports = {"http": 80, "https": 443}
    if here.hostname != there.hostname or there.scheme not in ports:
        return False
    upgraded = here.scheme == "http" and there.scheme == "https" and here.port is None and there.port is None
    return upgraded or (here.port or ports[here.scheme]) == (there.port or ports[there.scheme])


def _missing_package(url: str, module: str, distribution: str) -> InputError:
    return InputError(f"{without_credentials(url)}: {module} is not installed", f"run `pip install '{distribution}'`")


def asking(url: str, question: Callable[[], Value]) -> Value:
    """Call `question`, a request to the file system of a URL, and return its result.

    Raises:
        InputError: The request failed for any other reason.
        Vanished: The file no longer exists.
    """
    try:
        return question()
    except (WorkbenchError, MemoryError, ImportError, Vanished):
        raise
    except Exception as error:  # noqa: BLE001  # each protocol's library has errors of its own
        # Not `from error`: its text may hold credentials, which --debug would print.
        raise _as_input_error(url, error) from None


def _as_input_error(url: str, error: Exception) -> InputError:
    """Return the error to show for a failed request to a URL; credentials are removed from its text."""
    place = without_credentials(url)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return InputError(
            f"{place}: no such file or folder, or no answer", "check the address, and that you may list it"
        )
    if isinstance(error, PermissionError):
        return InputError(f"{place}: access denied", "check the credentials in the environment, and their rights")
    reason = f"{type(error).__name__}: {scrubbed(str(error))}".rstrip(": ")
    return InputError(f"{place}: {reason}", "check address, network and credentials, and try again")
