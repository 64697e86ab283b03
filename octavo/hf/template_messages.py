"""Bring the messages of a chat request into the one form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from octavo.errors import InvalidRequestError
from octavo.hf.template_inputs import check_text, kind_of

__all__ = ["TemplateProfile", "normalize_messages"]

_MAX_MESSAGES = 10_000
_MAX_DEPTH = 64  # levels of lists and objects
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA_PARTS = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "image_pil": "images",
    "image_embeds": "images",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "input_video": "video",
    "video": "video",
    "video_embeds": "video",
    "file": "files",
    "input_file": "files",
}
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_OPTIONAL_CONTENT_ROLES = frozenset(("assistant", "tool", "function"))


class TemplateProfile(Protocol):
    """What normalising needs to know of a chat template."""

    @property
    def content_format(self) -> str:
        """Return "string" or "openai": whether the template takes a list of parts as content."""

    @property
    def needs_parts(self) -> bool:
        """Return whether the template takes nothing but a list of parts."""

    @property
    def mentions_developer(self) -> bool:
        """Return whether the template knows the role "developer"."""


def normalize_messages(messages: Sequence[Mapping[str, Any]], template: TemplateProfile) -> list[dict[str, Any]]:
    """Check messages as the OpenAI API has them and return new ones in the form that the template expects.

    Text parts are joined with newlines unless the template takes parts; the arguments of tool calls become
    objects; an assistant's content may be null, "", [] or absent with the same result (""), and a refusal stands for
    it. Keys that are not known are kept. Raises InvalidRequestError naming the path of what is wrong.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequestError(f"messages is {_shown(messages)}; a non-empty array is needed", "messages")
    if len(messages) > _MAX_MESSAGES:
        raise InvalidRequestError(f"messages has {len(messages)} entries; at most {_MAX_MESSAGES}", "messages")
    made = [_message(message, f"messages[{i}]", template) for i, message in enumerate(messages)]
    for i, message in enumerate(made):
        for j, call in enumerate(message.get("tool_calls", ())):
            call.setdefault("id", f"call{i % 1000:03d}{j % 100:02d}")
    return made


def _shown(value: object) -> str:
    """Return how an error shows a value that should have been a non-empty array."""
    return "empty" if isinstance(value, (list, tuple)) else kind_of(value)


def _message(message: Mapping[str, Any], path: str, template: TemplateProfile) -> dict[str, Any]:
    """Return one message in its final form."""
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{path} is {kind_of(message)}; a message is an object", path)
    _check_tree(message, path, 0)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(
            f"{path}.role is {kind_of(role) if role != '' else 'empty'}; it is a string such as 'user'", f"{path}.role"
        )
    made = dict(message)
    made["role"] = "system" if role == "developer" and not template.mentions_developer else role
    if "content" not in message and role not in _OPTIONAL_CONTENT_ROLES:
        raise InvalidRequestError(f"{path}.content is missing; a {role} message needs it", f"{path}.content")
    made["content"] = _content(message.get("content"), f"{path}.content", template)
    if made.get("tool_calls"):
        made["tool_calls"] = _tool_calls(made["tool_calls"], f"{path}.tool_calls")
    else:
        made.pop("tool_calls", None)
        if made.get("function_call") is not None:  # how the API wrote a single call before there were tools
            made["tool_calls"] = [_tool_call({"function": made.pop("function_call")}, f"{path}.function_call")]
        elif not made["content"] and isinstance(made.get("refusal"), str):
            made["content"] = made["refusal"]
    if role == "tool" and not isinstance(message.get("tool_call_id", ""), (str, type(None))):
        raise InvalidRequestError(
            f"{path}.tool_call_id is {kind_of(message['tool_call_id'])}; it is a string", f"{path}.tool_call_id"
        )
    reasoning = next((made[key] for key in _REASONING_KEYS if made.get(key) is not None), None)
    if isinstance(reasoning, str):
        made.setdefault("thinking", reasoning)
        made["reasoning_content"] = reasoning
    return made


def _content(content: object, path: str, template: TemplateProfile) -> str | list[dict[str, Any]]:
    """Return the content of a message as the template takes it."""
    if content is None or (isinstance(content, (list, tuple)) and not content):
        content = ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if template.needs_parts and content else content
    if not isinstance(content, (list, tuple)):
        raise InvalidRequestError(f"{path} is {kind_of(content)}; it is a string or an array of parts", path)
    texts = [_part_text(part, f"{path}[{i}]") for i, part in enumerate(content)]
    if template.content_format == "string":
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _part_text(part: object, path: str) -> str:
    """Return the text of one content part. Raises InvalidRequestError for images and the like."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"{path} is {kind_of(part)}; a content part is an object with a type", path)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA_PARTS:
        raise InvalidRequestError(
            f"{path}.type is {kind!r}: {_MEDIA_PARTS[kind]} are not supported by this model; send text", f"{path}.type"
        )
    name = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if name is None:
        shown = repr(kind)[:100] if isinstance(kind, str) else kind_of(kind)
        raise InvalidRequestError(f"{path}.type is {shown}; allowed are {', '.join(_TEXT_PARTS)}", f"{path}.type")
    text = part.get(name)
    if not isinstance(text, str):
        raise InvalidRequestError(f"{path}.{name} is {kind_of(text)}; it is a string", f"{path}.{name}")
    return text


def _tool_calls(calls: object, path: str) -> list[dict[str, Any]]:
    """Return the tool calls of an assistant message, with arguments as objects."""
    if not isinstance(calls, (list, tuple)):
        raise InvalidRequestError(f"{path} is {kind_of(calls)}; it is an array", path)
    return [_tool_call(call, f"{path}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, path: str) -> dict[str, Any]:
    """Return one tool call."""
    if not isinstance(call, Mapping):
        raise InvalidRequestError(f"{path} is {kind_of(call)}; a tool call is an object", path)
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f"{path}.function is {kind_of(function)}; it is an object", f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(
            f"{path}.function.name is {kind_of(name)}; it is a non-empty string", f"{path}.function.name"
        )
    made = {key: value for key, value in call.items() if not (key == "id" and value is None)}
    made["type"] = call.get("type") or "function"
    arguments = _arguments(function.get("arguments"), f"{path}.function.arguments")
    made["function"] = {**function, "arguments": arguments}
    return made


def _arguments(arguments: object, path: str) -> dict[str, Any]:
    """Return the arguments of a tool call as an object; a string is read as JSON, nothing means {}."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"{path} is not valid JSON: {error}; send the model's own output", path
            ) from error
        _check_tree(arguments, path, 0)
    if not isinstance(arguments, Mapping):
        raise InvalidRequestError(f"{path} is {kind_of(arguments)}; it is an object, or JSON text of one", path)
    return dict(arguments)


def _check_tree(value: object, path: str, depth: int) -> None:
    """Raise InvalidRequestError for a lone surrogate or too much depth anywhere in JSON-like data."""
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"{path[:200]} is nested more than {_MAX_DEPTH} levels deep", path[:200])
    if isinstance(value, str):
        check_text(value, path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidRequestError(f"{path} has a key that is {kind_of(key)}; keys are strings", path)
            check_text(key, f"{path} (a key)")
            _check_tree(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check_tree(item, f"{path}[{i}]", depth + 1)
