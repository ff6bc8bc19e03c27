"""What nobody sees: escaped where a person reads, left out of names. The oracle is Unicode's own database."""

from __future__ import annotations

import unicodedata

import pytest

from mcpagent.core.hidden_text import illegible_name, is_legible, printable, without_hidden

# Format characters with a glyph of their own: signs that Arabic, Syriac and Kaithi put around a number.
_VISIBLE_FORMAT = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}


def _invisible() -> list[str]:
    """By category: control, format, surrogate, line and paragraph separators; and variation selectors."""
    chars = map(chr, range(0x110000))
    return [
        c
        for c in chars
        if (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\t\n")
        or "VARIATION SELECTOR" in unicodedata.name(c, "")
        if ord(c) not in _VISIBLE_FORMAT
    ]


def test_no_invisible_character_of_unicode_is_printed_or_hidden_in_text() -> None:
    invisible = _invisible()
    assert len(invisible) > 2000
    text = "a".join(invisible)
    shown = printable(text)
    assert set(shown).isdisjoint(invisible)
    assert shown.count("\\") == len(invisible)
    assert set(without_hidden(text)[0]).isdisjoint(set(invisible) - {"\r"})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07\x1b[2J", "\\x1b]0;owned\\x07\\x1b[2J"),
        ("fine\rFAKE", "fine\\rFAKE"),
        ("one\r\ntwo\n\tthree", "one\ntwo\n\tthree"),
        ("a\u202eb\u2066c\U000e0041", "a\\u202eb\\u2066c\\U000e0041"),
        ("\x9b31m csi of one byte", "\\x9b31m csi of one byte"),
        ("héllo 你好 👨‍👩‍👧 ❤️ 1️⃣ می‌خواهم", "héllo 你好 👨‍👩‍👧 ❤️ 1️⃣ می‌خواهم"),
    ],
)
def test_a_person_sees_what_was_hidden(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_byte_smuggled_in_variation_selectors_is_removed() -> None:
    smuggled = "😀" + "".join(chr(0xFE00 + n) for n in (6, 5, 6, 12, 6, 12))
    assert without_hidden(smuggled) == ("😀", 6)


@pytest.mark.parametrize("name", ["a\u200b", "a\nerror: b", "a\x1b[1m", "\u202ea", "a\ufe01"])
def test_a_name_that_hides_something_is_not_legible(name: str) -> None:
    assert not is_legible(name)
    assert illegible_name({"properties": {"ok": {"items": [{"properties": {name: {}}}]}}}) == name
    assert illegible_name({"properties": {"größe 尺": {"enum": [name]}}}) is None
