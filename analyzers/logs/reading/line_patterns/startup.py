"""Define the patterns of log lines on jobs that fail before their first step: rendezvous, ports, arguments."""

import re

from analyzers.case.facts import EventKind, Facts, Reason
from analyzers.logs.reading.line_patterns.pattern import Found, number, pattern, plain

STARTUP = EventKind.STARTUP


def port_in_use(match: "re.Match[str]") -> Found:
    port = re.search(r"(?:port: |\]:|[\d.]:)(\d{2,5})\b", match.string)
    return Found(STARTUP, Facts(reason=Reason.PORT_IN_USE, port=number(port[1]) if port else None))


def _bind_warning(match: "re.Match[str]") -> Found:
    """Return the event that reports a failed bind to one address.

    It is harmless if the bind to another address succeeds.
    """
    return Found(EventKind.NETWORK, Facts(reason=Reason.PORT_IN_USE, port=number(match[1])))


def unreachable(match: "re.Match[str]") -> Found:
    """Return the event that reports a rendezvous store that does not answer, with its address."""
    facts = Facts(reason=Reason.UNREACHABLE_MASTER, peer=match[1] or match[3], port=number(match[2] or match[4]))
    return Found(STARTUP, facts)


def missing_ranks(match: "re.Match[str]") -> Found:
    """Return the event which reports that only some ranks joined a store.

    `facts.joined` is how many joined, `facts.expected` how many were expected.
    """
    return Found(STARTUP, Facts(reason=Reason.MISSING_RANKS, joined=number(match[1]), expected=number(match[2])))


def no_script(match: "re.Match[str]") -> Found:
    return Found(STARTUP, Facts(reason=Reason.NO_SCRIPT, name=match[1]))


def bad_arguments(match: "re.Match[str]") -> Found:
    return Found(STARTUP, Facts(reason=Reason.BAD_ARGUMENTS, name=match[1].strip()))


PATTERNS = (
    pattern("EADDRINUSE", r"EADDRINUSE", port_in_use),
    pattern("failed to listen on any", r"failed to listen on any.*(?:EADDRINUSE|ddress already in use)", port_in_use),
    pattern("ddress already in use", r"Error: .*ddress already in use", port_in_use),
    pattern("failed to bind to", r"failed to bind to \S*?:(\d{2,5}) .*errno: 98", _bind_warning),
    plain("RendezvousTimeoutError", STARTUP, Reason.RENDEZVOUS_TIMEOUT),
    plain("RendezvousConnectionError", STARTUP, Reason.UNREACHABLE_MASTER),
    pattern(
        "client socket has timed out",
        r"trying to connect to (?:\(([\w.:%-]{1,200}), (\d{1,5})\)|([\w.%-]{1,200}):(\d{1,5})\b)",
        unreachable,
    ),
    pattern(
        "failed to connect to any network address of",
        r"failed to connect to any network address of \(([\w.:%-]{1,200}), (\d{1,5})\)()()",
        unreachable,
    ),
    pattern(
        "failed to connect/validate to host",
        r"failed to connect/validate to host \[?([\w.:%-]{1,200}?)\]?:(\d{1,5})\b()()",
        unreachable,
    ),
    pattern(
        "joined", r"Timed out after \d+ seconds waiting for (?:clients|workers)\. (\d+)/(\d+)", missing_ranks
    ),
    plain("ncclUniqueId", STARTUP, Reason.MISSING_RANKS, r"store->get\('[^']{0,200}'\) got error"),
    plain("Timeout waiting for key", STARTUP, Reason.MISSING_RANKS),
    plain("Duplicate GPU", STARTUP, Reason.DUPLICATE_GPU),
    pattern("can't open file", r"can't open file '([^']{1,400})'", no_script),
    pattern(": error: ", r"^\S{1,100}: error: ((?:unrecognized arguments|the following arguments are|argument |invalid"
            r" choice|ambiguous option).{1,300})", bad_arguments),
)  # fmt: skip
