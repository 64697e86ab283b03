"""Check the JSON-like data of a request and turn it into traced values for a chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from octavo.errors import InvalidRequestError
from octavo.hf.provenance import FINAL, FINAL_END, TRUSTED, Mask, TracedText
from octavo.hf.template_budget import Budget

__all__ = ["SENTINEL", "InputReader", "check_text", "final_mask", "find_surrogate", "kind_of"]

_MAX_DEPTH = 64  # levels of lists and objects in messages, tools and variables
_MAX_NODES = 250_000  # values in one request
_MAX_INT_BITS = 4096
_SURROGATE = re.compile("[\ud800-\udfff]")

# A role is a word of the protocol, not of the user's: templates write it inside their markup.
_ROLES = frozenset(("assistant", "developer", "function", "ipython", "model", "system", "tool", "user"))

SENTINEL = "\ue0ff"  # private use; stands for the end of a blank final message

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    (Mapping, "an object"),
)
_KINDS += ((Sequence, "an array"), (type(None), "null"))


def kind_of(value: object) -> str:
    """Return how JSON names the kind of a value, for error messages."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)


def find_surrogate(text: str) -> int | None:
    """Return the index of the first lone surrogate, or None."""
    found = _SURROGATE.search(text)
    return None if found is None else found.start()


def check_text(text: str, path: str) -> str:
    """Return the text; raise InvalidRequestError if it has a lone surrogate, which no encoding can carry."""
    found = find_surrogate(text)
    if found is not None:
        raise InvalidRequestError(
            f"{path} has a lone surrogate (U+{ord(text[found]):04X}) at character {found}; "
            "send valid Unicode (JSON escapes for such characters come in pairs)",
            path,
        )
    return text


def final_mask(content: str) -> Mask:
    """Return the mask for the content that is to be continued: its last visible character is marked."""
    last = len(content.rstrip()) - 1
    if last < 0:
        return FINAL
    return bytes((FINAL,)) * last + bytes((FINAL_END,)) + bytes((FINAL,)) * (len(content) - last - 1)


class InputReader:
    """Turn request data into values for one rendering, counting what it reads.

    Everything read is untrusted, except roles that are words of the protocol.
    """

    __slots__ = ("_budget", "_num_chars", "_num_nodes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._num_chars = 0
        self._num_nodes = 0

    def text(self, text: str, path: str, mask: Mask = 0) -> TracedText:
        """Return a text of the request as a traced text."""
        self._num_chars += len(text)
        if self._num_chars > self._budget.max_chars:
            raise InvalidRequestError(
                f"{path}: the request has more than {self._budget.max_chars} characters; shorten it", path
            )
        return TracedText(check_text(str(text), path), mask, self._budget)

    def value(self, value: object, path: str, depth: int = 0) -> object:
        """Return JSON-like data with its texts traced. Raises InvalidRequestError naming the path of what is wrong."""
        self._num_nodes += 1
        self._budget.tick()
        if depth > _MAX_DEPTH or self._num_nodes > _MAX_NODES:
            limit = f"{_MAX_DEPTH} levels deep" if depth > _MAX_DEPTH else f"{_MAX_NODES} values"
            raise InvalidRequestError(f"{path[:200]}: messages, tools and variables may be at most {limit}", path[:200])
        if isinstance(value, str):
            return self.text(value, path)
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int):
            if value.bit_length() > _MAX_INT_BITS:
                raise InvalidRequestError(f"{path} is an integer of more than {_MAX_INT_BITS} bits", path)
            return value
        if isinstance(value, Mapping):
            return {
                self._key(key, path): self.value(item, f"{path}.{key}"[:400], depth + 1) for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        raise InvalidRequestError(f"{path} is a {type(value).__name__}; allowed are JSON values", path)

    def _key(self, key: object, path: str) -> TracedText:
        """Return the key of an object as a traced text."""
        if not isinstance(key, str):
            raise InvalidRequestError(f"{path} has a key that is {kind_of(key)}; keys are strings", path)
        return self.text(key, f"{path} (a key)")

    def messages(self, messages: Sequence[Mapping[str, object]]) -> list[dict[object, object]]:
        """Return the messages of a conversation; a known role is trusted text."""
        read: list[dict[object, object]] = []
        for i, message in enumerate(messages):
            path = f"messages[{i}]"
            if not isinstance(message, Mapping):
                raise InvalidRequestError(f"{path} is {kind_of(message)}; a message is an object", path)
            made = self.value(message, path)
            assert isinstance(made, dict)
            role = message.get("role")
            if isinstance(role, str) and role in _ROLES:
                made["role"] = TracedText(role, TRUSTED, self._budget)
            read.append(made)
        return read

    def mark_final(self, message: dict[object, object]) -> bool:
        """Mark the content of the message that is to be continued; return whether a sentinel stands for it.

        Blank content gets a sentinel character, because there is nothing else to find again in the rendered text.
        """
        content = message.get("content")
        holder: dict[object, object] = message
        name = "content"
        if isinstance(content, list) and content and isinstance(content[-1], dict):
            holder, name = content[-1], "text"
        text = holder.get(name)
        if not isinstance(text, str):
            raise InvalidRequestError(
                "continue_final_message needs a final message with text content; "
                f"it has {kind_of(content) if content else 'none'}",
                "continue_final_message",
            )
        plain = str(text)
        is_blank = not plain.strip()
        if is_blank:
            plain += SENTINEL
        holder[name] = TracedText(plain, final_mask(plain), self._budget)
        return is_blank
