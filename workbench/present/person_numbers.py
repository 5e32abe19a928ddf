"""Find the numbers of persons in a text: of phones, accounts, cards and identity papers.

Logs are full of other numbers. So a number counts only where a word before it says what it is, where it is written as
nothing else is, or where its check digits are right.
"""

import re
from collections.abc import Callable

_DIGITS = r"\d(?:[ ./-]?\(?\d\)?){5,14}"
_PHONE_WORDS = (
    r"(?:tele?(?:phone|fon|fax)?|phone|mobil(?:e|funk)?|handy|cell(?: ?phone)?|fax|whatsapp|sms|pager|hotline|on-?call)"
)
_PAPERS = r"(?:ssn|social security|passport|tax|national|identity|id card|insurance|aadhaar|driver'?s? licen[cs]e)"
_PERSONS = r"(?:employee|personnel|staff|badge|student|matriculation|patient|customer|card ?holder)"
_NUMBER = r"(?:id|no|nr|number|num|#)\b\.?"
_CODE = r"(?P<number>(?=[\w.-]*\d)[A-Za-z0-9][\w-]{2,}(?:[ .-]\d[\w-]*)*)"
_UNIT = r"(?! ?(?:bytes|[kKMGTP]i?B|B|us|ms|ns|s|steps?|tokens?|%|x)\b)"

_RULES = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (
            "phone",
            rf"\b{_PHONE_WORDS}(?: ?{_NUMBER})?[\"']?\s?[.:=]*\s?[\"']?(?P<number>\+?\(?{_DIGITS})(?![\w.])",
        ),
        # With a country, as in E.123, in groups or as one number of ten digits and more.
        (
            "phone",
            r"(?<![\w.+(-])(?P<number>\+[1-9]\d{0,2}(?:[ .-]?\(\d{1,4}\))?(?:[ .-]\d{2,5}){2,5})(?![\w.-])" + _UNIT,
        ),
        ("phone", r"(?<![\w.+(-])(?P<number>\+[1-9]\d{9,14})(?![\w.-])" + _UNIT),
        ("phone", r"(?<![\w.-])(?P<number>\(\d{3}\) ?\d{3}-\d{4})(?![\w.-])"),
        ("number", rf"\b(?:{_PAPERS}|{_PERSONS})[ _-]?{_NUMBER}[\"']?\s*[:=#]?\s*[\"']?{_CODE}"),
        ("number", rf"\b(?:ssn|passport|aadhaar)[\"']?\s*[:=#]\s*[\"']?{_CODE}"),
    )
)


def _has_check_digits(letters: str) -> bool:
    """Return whether an account number is one of ISO 13616 (IBAN): its remainder by 97 is 1."""
    return int("".join(str(int(letter, 36)) for letter in letters[4:] + letters[:4])) % 97 == 1


def _is_card(digits: str) -> bool:
    """Return whether the digits have the check digit of ISO 7812 (Luhn), and are no row of four sizes."""
    if digits[0] not in "3456" or not any(int(digits[start : start + 4]) % 8 for start in (0, 4, 8, 12)):
        return False
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return sum(number // 10 + number % 10 for number in doubled) % 10 == 0


def _is_author(digits: str) -> bool:
    """Return whether the digits have the check digit of an ORCID (ISO 7064, modulus 11 with radix 2)."""
    total = 0
    for digit in digits[:-1]:
        total = (total + int(digit)) * 2
    return "0123456789X"[(12 - total % 11) % 11] == digits[-1].upper()


def _is_phone(digits: str) -> bool:
    """Return whether ten digits, as Americans group them, are rather those of a phone than the sizes of layers."""
    return digits[-2:] != "00" and any(int(part) % 8 for part in (digits[:3], digits[3:6], digits[6:]))


_CHECKED: tuple[tuple[str, re.Pattern[str], Callable[[str], bool]], ...] = (
    ("phone", re.compile(r"(?<![\w.-])[2-9]\d{2}-\d{3}-\d{4}(?![\w.-])"), _is_phone),
    (
        "number",
        re.compile(r"(?<![\w-])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?(?![\w-])"),
        _has_check_digits,
    ),
    ("number", re.compile(r"(?<![\w-])(?:\d{4}[ -]){3}\d{4}(?![\w-])"), _is_card),
    ("number", re.compile(r"(?<![\w-])(?:\d{4}-){3}\d{3}[\dXx](?![\w-])"), _is_author),
)


def replace_person_numbers(text: str, hidden: Callable[[str, str], str]) -> str:
    """Return a text in which `hidden(kind, number)` stands for each number of a person; `kind` is phone or number."""
    for kind, pattern, is_right in _CHECKED:
        text = pattern.sub(
            lambda match, kind=kind, is_right=is_right: (  # type: ignore[misc]
                hidden(kind, match[0]) if is_right(re.sub(r"[ -]", "", match[0])) else match[0]
            ),
            text,
        )
    for kind, pattern in _RULES:
        text = pattern.sub(
            lambda match, kind=kind: (  # type: ignore[misc]
                match[0][: match.start("number") - match.start()]
                + hidden(kind, match["number"])
                + match[0][match.end("number") - match.start() :]
            ),
            text,
        )
    return text
