"""Send signed messages to a receiver, and check that the answers come from this receiver."""

import http.client
from dataclasses import dataclass
from urllib.parse import urlsplit

from workbench.collect.parcel import PATH, SIGNATURE
from workbench.collect.token import is_signed, signature

ANSWER_S = 60.0
"""The seconds within which the receiver must answer."""
REPLY_BYTES = 1 << 20


class Unreachable(Exception):
    """Raised if the receiver does not answer, or the answer comes from another program; the message says why."""


class Rejected(Exception):
    """Raised if the receiver does not accept this sender; the message says why."""


@dataclass(frozen=True)
class Link:
    """The connection to a receiver at a URL such as `http://head:29501`; `token` signs the messages."""

    url: str
    token: bytes

    def post(self, body: bytes) -> bytes:
        """Send a message, and return the answer.

        Raises:
            Unreachable: There is no answer from the receiver.
            Rejected: The receiver refuses the message.
        """
        connection = self._connection()
        try:
            connection.request("POST", PATH, body, {SIGNATURE: signature(self.token, body)})
            response = connection.getresponse()
            content = response.read(REPLY_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if response.status == http.HTTPStatus.UNAUTHORIZED:
            raise Rejected("the receiver has another token")
        if response.status == http.HTTPStatus.BAD_REQUEST:
            raise Rejected(content.decode(errors="replace")[:200])
        signed = response.getheader(SIGNATURE, "")
        if response.status != http.HTTPStatus.OK or not is_signed(self.token, content, signed):
            raise Unreachable(f"status {response.status} of something else than the receiver")
        return content

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=ANSWER_S)
