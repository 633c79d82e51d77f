"""Text of a reply as it grows, held back where a character is not complete yet."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

CONTEXT = 5  # prompt tokens decoded along, so that the first word gets the space that its place asks for
INCOMPLETE = "�"
CJK_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class Detokenizer:
    """Turns the ids of one reply into text deltas that join to the reply's text, as SGLang's detokenizer does.

    Ids are decoded together with a few before them, since many tokenizers space a token by its neighbour. While the
    new text ends inside a character, only the part that can no longer change is given out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        keep_stop: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._keep_stop = keep_stop
        self._ids = list(prompt_ids[-CONTEXT:])
        self._context_start = 0
        self._read = len(self._ids)  # ids whose text is settled
        self._settled = ""  # text of those
        self._sent = 0  # characters given out; may run ahead of the settled text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` on their own."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=self._skip_special_tokens)
        return text

    def advance(self, new_ids: Sequence[int]) -> str:
        """Takes further ids and gives the text that is certain by now, which may be empty."""
        self._ids.extend(new_ids)
        new_text = self._unsettled_text(len(self._ids))
        if new_text and not new_text.endswith(INCOMPLETE):
            self._settled += new_text
            self._context_start, self._read = self._read, len(self._ids)
            return self._give_up_to(self._settled)
        return self._give_up_to(self._settled + certain_part(new_text))

    def finish(self, new_ids: Sequence[int], matched: str | int | None) -> str:
        """Takes the last ids and gives all text still due, without the stop string or stop token that was met."""
        self._ids.extend(new_ids)
        end = len(self._ids)
        if isinstance(matched, int) and not self._keep_stop:
            end -= 1
        text = self._settled + self._unsettled_text(end)
        if isinstance(matched, str) and matched in text:
            position = text.index(matched)
            text = text[: position + len(matched) if self._keep_stop else position]
        return self._give_up_to(text)

    def _unsettled_text(self, end: int) -> str:
        before = self.decode(self._ids[self._context_start : self._read])
        return self.decode(self._ids[self._context_start : end])[len(before) :]

    def _give_up_to(self, text: str) -> str:
        delta = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return delta


def certain_part(text: str) -> str:
    """The part of `text`, which may end inside a character, that further tokens cannot change.

    Whole words; up to the last character in scripts without spaces; everything behind a line break.
    """
    if text.endswith("\n") or _is_cjk(text[-1:]):
        return text
    if _is_cjk(text[-2:-1]):
        return text[:-1]
    return text[: text.rfind(" ") + 1]


def _is_cjk(character: str) -> bool:
    return bool(character) and any(first <= ord(character) <= last for first, last in CJK_BLOCKS)
