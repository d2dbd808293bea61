"""The fixed texts a tokenizer must encode alike before a bundle may carry it in another form.

Each line aims at one way in which two tokenizers of the same vocabulary come to differ. Absent are NUL, since the runtime takes C
strings, and the two inputs a SentencePiece model cannot encode alike, which `build_sentencepiece` names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from converters.corpus import documents

_PROSE = (
    "The inspector found a hairline crack, 3.5 mm wide, in girder no. 12.",
    "It's well-known that \u201cquotes\u201d, \u2018apostrophes\u2019 and dashes \u2013 \u2014 differ\u2026",
    "ALL CAPS, CamelCase, snake_case, kebab-case, MiXeD.",
    "1 22 333 4444 1,234,567.89 0x1F 1e-9 ½ ① Ⅷ 50% ±32°C",
    "naïve café na\u0131\u0308ve cafe\u0301 Ångström A\u030angstro\u0308m \ufb01ne \ufb00",
    "Здравствуй, мир! Καλημέρα. שלום مرحبا नमस्ते สวัสดี 안녕하세요",
    "请检查第三号泵。倾斜了！",
)
_JAPANESE = (
    "第三ポンプの点検を行いました。異音なし、油漏れあり。",
    "平仮名カタカナ\uff76\uff85漢字、ＡＢＣ１２３\u3000全角空白。",
    "「吾輩は猫である。」と……、言った〜。ーー・々ヶ〆",
    "か\u3099き\u3099 がぎ 葛\U000e0100 \U00020bb7野家 \u9ad9橋 崎\ufa11",
)
_EMOJI = (
    "😀👍🏽👨\u200d👩\u200d👧\u200d👦🇯🇵❤\ufe0f☀\ufe0e",
    "ok👌 ok 👌\nok👌👌",
    "🫨🪿\U00010348\U0001d573🧿",
)
_CODE = (
    "def f(x: int = 3) -> str:\n    if x > 2:\n        return f'{x!r}'\n\n    return \"\\n\"  # none\n",
    '#include <stdio.h>\nint main(void) {\n\tprintf("%d\\n", 1 << 3);\n\treturn 0;\n}\n',
    "for (let i=0;i<10;++i){a[i]??=b?.c=>d;} // !== === ||= &&=",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\u3042"}}',
    "<table><tr><td>1</td></tr></table><h1>x</h1><br/> </s><s>",
    "SELECT * FROM t WHERE a LIKE '%x%' AND b <> 'it''s';",
    "{{ braces }} {% percent %} {# hash #} ${var} $$ `tick` ~tilde~ ^caret",
    "https://example.org/a/b?c=d&e=%20#f user@example.org C:\\dir\\file.txt",
)
_WHITESPACE = (
    " ",
    " a",
    "a ",
    "  a  b   c    d     ",
    "\n",
    "\r\n\r\n",
    "\n\n a\n \n\tb\t \n",
    "\u00a0\u2003\u3000\u200b\ufeff\u2028x",
    "\u2581 a\u2581b c",
    "\x01\x1f\x7f\x80\x0b\x0c",
)
_PLACEHOLDERS = ("<0x0A>", "<0xE3>", "<", "<|", "|>", "<start_of", "_turn>", "<<<>>>")


def proof_texts(special_texts: Sequence[str], pieces: Sequence[str], n_random: int = 300) -> list[str]:
    """Texts to compare two tokenizers on: the fixed ones, the verification texts, each control token in context, and random mixtures.

    Args:
        special_texts: The texts of the tokenizer's control tokens, without the unknown token's.
        pieces: Vocabulary texts that random mixtures are drawn from, spaces written as spaces.
        n_random: How many mixtures; they are the same on every run.
    """
    texts = [*_PROSE, *_JAPANESE, *_EMOJI, *_CODE, *_WHITESPACE, *_PLACEHOLDERS]
    for character in " \n\t":
        texts += [f"x{character * length}y" for length in (2, 3, 7, 15, 16, 17, 30, 31, 32, 33, 40, 64, 100)]
    for special in special_texts:
        texts += [special, f"a {special} b", f"\n{special}{special}日"]
    texts += [document.text for document in documents("verification")]
    rng = random.Random(20261130)
    atoms = [*(text for text in texts if len(text) < 1000), " ", "  ", "\n", "e", "の", "\u0301", "\u200d", *special_texts]
    for _ in range(n_random):
        texts.append("".join(rng.choice(atoms if rng.random() < 0.4 or not pieces else pieces) for _ in range(rng.randint(2, 12))))
    return [text for text in texts if text]
