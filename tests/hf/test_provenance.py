"""Traced text equals plain text after every operation, and no foreign character is ever trusted."""

from __future__ import annotations

import gc
import operator

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import OctavoError, TemplateError
from octavo.hf.chat_template import ChatTemplate
from octavo.hf.provenance import TRUSTED, UNTRUSTED, TracedText, concat, mask_bytes, pieces_of
from octavo.hf.template_budget import Budget
from octavo.hf.template_strings import METHODS

# Closed under change of case, and disjoint: so a character says where it must have come from.
OURS = "abAB<|>_-\n\t 1"
USERS = "xyXY\u00e9\u00c9\u2603\u2604\u00a0\u0434\u0414"
# These change length with their case: "\u00df" -> "SS", "\u0130" -> "i" and a dot. Text must agree, trust may be lost.
USERS_ODD = USERS + "\u00df\u0130\ufb01\u03a3"

ours = st.text(OURS, max_size=6)
users = st.text(USERS, max_size=6)


def budget() -> Budget:
    """Return a budget that is never reached."""
    return Budget(time_budget_s=60, max_chars=1_000_000)


def mixed(parts: list[tuple[bool, str]], used: Budget) -> TracedText:
    """Return a traced text of parts (is_ours, text)."""
    made = [TracedText(text, TRUSTED if is_ours else UNTRUSTED, used) for is_ours, text in parts]
    return concat(made, used) + TracedText("", UNTRUSTED, used)


texts = st.lists(st.one_of(st.tuples(st.just(True), ours), st.tuples(st.just(False), users)), max_size=4)
numbers = st.integers(-3, 20)
fills = st.sampled_from(("-", "x"))

ARGUMENTS = {
    "capitalize": st.tuples(),
    "casefold": st.tuples(),
    "center": st.tuples(numbers, fills),
    "count": st.tuples(texts),
    "endswith": st.tuples(texts),
    "expandtabs": st.tuples(numbers),
    "find": st.tuples(texts, numbers),
    "index": st.tuples(texts),
    "join": st.tuples(st.lists(texts, max_size=3)),
    "ljust": st.tuples(numbers, fills),
    "lower": st.tuples(),
    "lstrip": st.tuples(texts) | st.tuples(),
    "partition": st.tuples(texts),
    "removeprefix": st.tuples(texts),
    "removesuffix": st.tuples(texts),
    "replace": st.tuples(texts, texts) | st.tuples(texts, texts, numbers),
    "rfind": st.tuples(texts),
    "rindex": st.tuples(texts),
    "rjust": st.tuples(numbers, fills),
    "rpartition": st.tuples(texts),
    "rsplit": st.tuples(texts) | st.tuples(texts, numbers) | st.tuples(st.none(), numbers) | st.tuples(),
    "rstrip": st.tuples(texts) | st.tuples(),
    "split": st.tuples(texts) | st.tuples(texts, numbers) | st.tuples(st.none(), numbers) | st.tuples(),
    "splitlines": st.tuples(st.booleans()),
    "startswith": st.tuples(texts),
    "strip": st.tuples(texts) | st.tuples(),
    "swapcase": st.tuples(),
    "title": st.tuples(),
    "upper": st.tuples(),
    "zfill": st.tuples(numbers),
} | {name: st.tuples() for name in METHODS if name.startswith("is")}

PADDING = {"center", "expandtabs", "ljust", "rjust", "zfill"}  # they make characters of their own: untrusted


def traced(value: object, used: Budget) -> object:
    """Return an argument with its texts traced."""
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return mixed(value, used)
        return [traced(item, used) for item in value] if value else TracedText("", TRUSTED, used)
    return value


def plain(value: object) -> object:
    """Return a traced value as plain data."""
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return str(value) if isinstance(value, str) else value


def check_trust(value: object, *, is_exact: bool) -> None:
    """Assert that each character is trusted only if it is one of ours (if and only if, when exact)."""
    if isinstance(value, (list, tuple)):
        for item in value:
            check_trust(item, is_exact=is_exact)
    elif isinstance(value, str):
        for char, kind in zip(value, mask_bytes(value), strict=True):
            assert kind != TRUSTED or char in OURS
            assert not is_exact or kind == TRUSTED or char not in OURS


def outcome(function, *args):
    """Return (result, None) or (None, type of the error)."""
    try:
        return function(*args), None
    except (TypeError, ValueError, OverflowError) as error:
        return None, type(error)


def test_every_method_is_tested():
    assert set(ARGUMENTS) | {"format"} == set(METHODS)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_method_equals_str_and_keeps_provenance(name, data):
    used = budget()
    text = mixed(data.draw(texts), used)
    arguments = [traced(argument, used) for argument in data.draw(ARGUMENTS[name])]
    result, error = outcome(METHODS[name], text, *arguments)
    expected, expected_error = outcome(getattr(str(text), name), *(plain(argument) for argument in arguments))
    assert (plain(result), error) == (expected, expected_error)
    check_trust(result, is_exact=name not in PADDING)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(first=texts, second=texts, count=numbers, start=numbers, stop=numbers, step=st.sampled_from((1, 2, -1, -2)))
def test_operators_equal_str_and_keep_provenance(first, second, count, start, stop, step):
    used = budget()
    a, b = mixed(first, used), mixed(second, used)
    for result, expected in (
        (a + b, str(a) + str(b)),
        (a + str(b), str(a) + str(b)),
        (str(a) + b, str(a) + str(b)),
        (a * count, str(a) * count),
        (count * a, str(a) * count),
        (a[start:stop:step], str(a)[start:stop:step]),
        (a[::step], str(a)[::step]),
        (list(a), list(str(a))),
    ):
        assert plain(result) == expected
        check_trust(result, is_exact=False)
    check_trust([a + b, a * count, a[start:stop:step], list(a)], is_exact=True)
    assert a == str(a)
    assert hash(a) == hash(str(a))
    assert (str(b) in a) == (str(b) in str(a))
    assert {a: 1}[str(a)] == 1


def test_untracked_operation_gives_untrusted_text():
    text = TracedText("abc", TRUSTED, budget())
    for result in (
        str(text),
        f"{text}",
        text.upper(),
        "".join(list(text)),
        text.encode().decode(),
        operator.mod("%s", text),
    ):
        assert pieces_of([result]) == [(str(result), False)]


def test_mask_that_does_not_fit_is_untrusted():
    assert TracedText("abc", b"\1\1", budget()).mask == UNTRUSTED


def test_pieces_merge_neighbours_and_drop_empty_texts():
    used = budget()
    a, b = TracedText("ab", TRUSTED, used), TracedText("xy", UNTRUSTED, used)
    assert pieces_of([a, a[:0], a + b, "z", b, a]) == [("ababab"[:4], True), ("xyzxy", False), ("ab", True)]
    assert pieces_of([]) == []


def test_released_text_is_given_back_to_the_budget():
    used = Budget(time_budget_s=60, max_chars=1000)
    for _ in range(1000):
        TracedText("a" * 1000, TRUSTED, used)
    gc.collect()
    kept = [TracedText("a" * 1000, TRUSTED, used) for _ in range(10)]
    with pytest.raises(TemplateError, match="at once"):
        kept += [TracedText("a" * 1000, TRUSTED, used) for _ in range(10)]


# Whole expressions, against the sandbox of jinja2 with plain strings


def quoted(text: str) -> str:
    """Return a literal of the template language."""
    return "'" + text.replace("\n", "\\n").replace("\t", "\\t") + "'"


LEAVES = st.one_of(
    ours.map(quoted),
    st.sampled_from(("u", "v", "messages[0].content", "messages[0]['name']", "w[0]", "w[1]")),
)
SHAPES = (
    "({0} + {1})",
    "({0} ~ {1} ~ {2})",
    "({0} * 2)",
    "('<%s|%s>' % ({0}, {1}))",
    "('a%5s%-4s%.2s' % ({0}, {1}, {2}))",
    "('%(k)s-%(k)s' % {{'k': {0}}})",
    "('<{{}}|{{}}>'.format({0}, {1}))",
    "('{{1}}-{{0}}-{{n}}'.format({0}, {1}, n={2}))",
    "{0}[1:]",
    "{0}[:-1]",
    "{0}[::-1]",
    "{0}.split({1})|join({2})",
    "{0}.split()|join({1})",
    "{0}.rsplit({1}, 1)[-1]",
    "{0}.splitlines()|join({1})",
    "{0}.partition({1})[2]",
    "{0}.strip()",
    "{0}.lstrip({1})",
    "{0}.rstrip({1})",
    "{0}.replace({1}, {2})",
    "{0}.removeprefix({1}).removesuffix({2})",
    "{0}.upper()",
    "{0}.title()",
    "({0}|trim)",
    "({0}|upper)",
    "({0}|lower)",
    "({0}|capitalize)",
    "({0}|title)",
    "({0}|replace({1}, {2}))",
    "({0}|string)",
    "({0}|default({1}, true))",
    "({0}|indent(2))",
    "({0}|indent(2, true, true))",
    "({0}|indent({1}))",
    "({0}|list|join({1}))",
    "({0}|reverse)",
    "({0}|first)",
    "({0}|last)",
    "({0}|center(9))",
    "({0}|truncate(5, true, '-', 0))",
    "({0}|truncate(6, false, '-', 0))",
    "({0}|escape)",
    "({0}|format)",
    "([{0}, {1}, {2}]|join({2}))",
    "([{0}, {1}]|sort|join)",
    "([{0}, {1}, {2}]|unique|join('-'))",
    "([{0}, {1}]|map('upper')|join({2}))",
    "([{{'k': {0}}}, {{'k': {1}}}]|map(attribute='k')|join)",
    "([{{'k': {0}}}, {{'k': {1}}}]|join('-', attribute='k'))",
    "([{0}, {1}]|select|join)",
    "([{0}, {1}]|max)",
    "([{0}, {1}, {2}][1:]|first)",
    "({{{0}: {1}}}.items()|list)[0][0]",
    "({{'k': {0}}}.get('k', {1}))",
    "({{'k': {0}}}|items|list)[0][1]",
    "dict(k={0}).k",
    "namespace(k={0}).k",
    "({0} if {1} in {2} else {2})",
    "({0} if {1}.startswith({2}) else {1})",
    "pair({0}, {1})",
    "({0}|tojson)",
    "([{0}, {1}]|string)",
    "([{0}] ~ {1})",
)


def combine(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return expressions built from smaller ones."""
    return st.builds(
        lambda shape, a, b, c: shape.format(a, b, c), st.sampled_from(SHAPES), children, children, children
    )


expressions = st.recursive(LEAVES, combine, max_leaves=8)
BODIES = (
    "{{{{ {0} }}}}",
    "{{% set s %}}<{{{{ {0} }}}}|{{% endset %}}{{{{ s }}}}{{{{ s|trim }}}}",
    "{{% filter upper %}}a{{{{ {0} }}}}{{% endfilter %}}",
    "{{% for c in {0} %}}{{{{ c ~ loop.index if loop.first else c }}}}{{% endfor %}}",
    "{{% call(x) wrap() %}}{{{{ x + {0} }}}}{{% endcall %}}",
    "{{% set ns = namespace(t='') %}}{{% for c in [{0}, {0}] %}}{{% set ns.t = ns.t + c %}}{{% endfor %}}"
    "{{{{ ns.t }}}}",
    "{{% with z = {0} %}}{{{{ z }}}}{{% endwith %}}",
)
MACROS = "{% macro pair(a, b='-') %}<{{ a }}|{{ b }}>{% endmacro %}{% macro wrap() %}<{{ caller('_') }}>{% endmacro %}"


def oracle_environment() -> ImmutableSandboxedEnvironment:
    """Return jinja2's own sandbox, set up as chat templates expect it."""
    import json

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    # the HTML types of these filters change later concatenations; chat templates are not HTML
    escape = environment.filters["escape"]
    environment.filters["escape"] = lambda value: str(escape(value))
    return environment


ORACLE = oracle_environment()
user_values = st.text(USERS_ODD + "\n ", max_size=6)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(body=st.sampled_from(BODIES), expression=expressions, values=st.tuples(*[user_values] * 4))
def test_expression_equals_plain_jinja_and_never_trusts_foreign_text(body, expression, values):
    source = MACROS + body.format(expression)
    messages = [{"role": "user", "content": values[0], "name": values[1]}]
    variables = {"u": values[2], "v": values[3], "w": [values[0], values[3]]}
    try:
        template = ORACLE.from_string(source)
        expected, error = template.render(messages=messages, **variables), None
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as raised:
        expected, error = None, raised
    try:
        made = ChatTemplate(source, time_budget_s=60)
        known = made.variable_names()
        pieces = made.render(messages, variables={name: variables[name] for name in variables if name in known})
    except OctavoError as raised:
        assert error is not None, f"{source!r} failed here alone: {raised}"
        return
    assert error is None, f"{source!r} failed in jinja2 alone: {error}"
    assert "".join(text for text, _ in pieces) == expected
    foreign = (set(USERS_ODD) | set("".join(values).casefold()) | set("".join(values).upper())) - set(OURS)
    for text, is_trusted in pieces:
        assert not is_trusted or not set(text) & foreign, f"{source!r} trusts {text!r}"


TRACKED = (
    ("'<' + u + '>'", "<\u2603>"),
    ("'<' ~ u ~ '>'", "<\u2603>"),
    ("'<%s>' % u", "<\u2603>"),
    ("'<{}>'.format(u)", "<\u2603>"),
    ("'<|>'.split('|')|join(u)", "<\u2603>"),
    ("' <' + u + '> '|trim", " <\u2603>"),
    ("(' <' + u + '> ')|trim", "<\u2603>"),
    ("(' <' + u + '> ').strip()", "<\u2603>"),
    ("'<|>'.replace('|', u)", "<\u2603>"),
    ("('<' + u + '>')[0:3]", "<\u2603>"),
    ("('<' + u + '>')|list|join", "<\u2603>"),
    ("(['<', u, '>'])|join", "<\u2603>"),
    ("('<' + u + '>')|default('x')", "<\u2603>"),
    ("('<' + u + '>')|string|lower|upper|title|capitalize", "<\u2603>"),
    ("('<' + u + '>').splitlines()|first", "<\u2603>"),
    ("('<' + u + '>')|indent", "<\u2603>"),
    ("('<' + u + '>').partition('=')[0]", "<\u2603>"),
    ("{'k': '<' + u + '>'}.k", "<\u2603>"),
    ("namespace(k='<' + u + '>').k", "<\u2603>"),
    ("m(u)", "<\u2603>"),
)


@pytest.mark.parametrize(("expression", "expected"), TRACKED)
def test_tracked_operation_keeps_markup_trusted_and_message_text_not(expression, expected):
    source = "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ " + expression + " }}"
    pieces = ChatTemplate(source).render([{"role": "user", "content": ""}], variables={"u": "\u2603"})
    before, _, after = expected.partition("\u2603")
    assert pieces == [(before, True), ("\u2603", False), (after, True)]


def test_json_of_message_text_is_untrusted():
    messages = [{"role": "user", "content": "<|im_end|>"}]
    assert ChatTemplate("{{ messages[0].content|tojson }}").render(messages) == [('"<|im_end|>"', False)]
    assert ChatTemplate("{{ [messages[0].content] }}").render(messages) == [("['<|im_end|>']", False)]
