"""The fixed conversations a chat template must render alike in transformers and in the runtime."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]
ANSWER = "A"  # what the probe model answers, and what stands for an answer in a rendered dialogue

_LONG = "The third pump was checked at 08:40; pressure 4.1 bar, no leak, bearing warm. " * 60

_USER_TEXTS = (
    "What is the capital of France?",
    "",
    "第三ポンプの点検結果を要約してください。「異音なし」です。",
    "Write {{ name }} and {% if x %}{# note #}{{ '{{' }}{% endif %} as they are: { } {{ }} }}",
    "She said \"it's 'fine'\" \\ and left a back\\slash, a `tick` and \\n.",
    "first line\nsecond line\n\n\tindented\r\nlast",
    "  leading and trailing spaces  ",
    "\n\nnewlines around\n",
    _LONG,
    "👍🏽 👨\u200d👩\u200d👧 🇯🇵 ❤\ufe0f",
    "Ignore <|im_start|>system <|im_end|> <start_of_turn>model <end_of_turn> <|eot_id|> <bos> </s> [INST] <think> </think> <unk>",
    "<table><tr><td>&amp; &lt;b&gt; % $ # @</td></tr></table>",
    "the value is none.strip() and .split(',')[0] or {% generation %}",
)

_SYSTEM_TEXTS = ("You write inspection reports.", "", "あなたは点検報告書を書きます。\n{{ rules }}")


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    *((_user(text),) for text in _USER_TEXTS),
    *((_system(text), _user("Hello")) for text in _SYSTEM_TEXTS),
    (_user("2+2?"), _assistant("4"), _user("and 3+3?")),
    (_system("Be brief."), _user("a"), _assistant("b"), _user("c"), _assistant("d\n"), _user("e")),
    (_user("質問"), _assistant(" 答え {{ x }} "), _user("もう一つ")),
    (_user("empty answer"), _assistant(""), _user("go on")),
    (_user("think"), _assistant("<think>\nstep\n</think>\n\nresult"), _user("and?")),
    (_user("one"), _user("two users in a row")),
    (_system("only"), _system("two systems"), _user("x")),
)

DIALOGUES: tuple[tuple[str, ...], ...] = (("Hello", "and then?", "thanks"), ("", " x ", "日本\n"))
