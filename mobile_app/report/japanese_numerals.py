"""Numbers in kanji: 二点五, 百二十, 二〇三, 三万五千. Kanji that are part of another word (一部, 十分) are left alone."""

from __future__ import annotations

import re
from decimal import Decimal

from mobile_app.report.evidence import Span
from mobile_app.report.number import MAX_DIGITS, Number
from mobile_app.report.span_set import SpanSet

DIGITS = {char: value for value, char in enumerate("〇一二三四五六七八九")} | {"零": 0}
_SMALL = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "億": 10**8}
_RUN = re.compile(r"[〇零一二三四五六七八九十百千万億]+(?:(?:点|コンマ|・)[〇零一二三四五六七八九]+)?")
# Words that only begin with the sign of a number. 十分 is `enough` unless a duration is meant.
_WORDS = (
    "一部|一応|一旦|一度に|一方|一緒|一般|一切|一体|一番(?!目|機|線|号)|一時的|一時停止|一通り|一瞬|一気|一致|一定|一律|一見|一応|一層|一目|一覧|一括|一回り|万一|万が一|"
    "統一|均一|唯一|同一|単一|二次|二重|三角|三脚|三菱|四角|四隅|五感|七夕|八百屋|九州|十字|百葉|千鳥|千葉|万全|万力|万能|六角|八角|"
    "十分(?!間|後|前|ほど|くらい|程度|おき|待|以内|ごと|遅)|三相|二相|単三|単四|一次|一酸化|二酸化|三方|四方|両一|第三者|二人三脚|一台も|一つも|一本も|一度も"
)
_NOT_NUMBERS = re.compile(f"(?:{_WORDS})")


def kanji_value(text: str) -> Decimal:
    """The value of a number in kanji, with or without decimals."""
    whole, _, decimals = re.sub("点|コンマ|・", ".", text).partition(".")
    if all(char in DIGITS for char in whole):
        value = int("".join(str(DIGITS[char]) for char in whole))
    else:
        value = _positional(whole)
    digits = "".join(str(DIGITS[char]) for char in decimals)
    return Decimal(f"{value}.{digits}") if digits else Decimal(value)


def _positional(whole: str) -> int:
    total = section = current = 0
    for char in whole:
        if char in DIGITS:
            current = current * 10 + DIGITS[char]
        elif char in _SMALL:
            section, current = section + (current or 1) * _SMALL[char], 0
        else:
            total, section, current = total + ((section + current) or 1) * _LARGE[char], 0, 0
    return total + section + current


def kanji_numbers(folded: str) -> list[Number]:
    """Every number in kanji, left to right. Whether a lone sign counts is decided by what follows it, see `facts`."""
    words = SpanSet(Span(*match.span()) for match in _NOT_NUMBERS.finditer(folded))
    found = []
    for match in _RUN.finditer(folded):
        span = Span(*match.span())
        if len(match.group()) <= MAX_DIGITS and not words.meets(span):
            found.append(Number(span, kanji_value(match.group()), True))
    return found
