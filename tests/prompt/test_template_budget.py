"""Templates that loop for ever, or make more than fits into memory, end with a sentence, soon; others hardly notice."""

import time
import tracemalloc
from typing import Any

import jinja2.ext
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prompt.builders import own_template
from sightline.errors import PromptError
from sightline.prompt.template import ChatTemplate, tojson
from sightline.prompt.template_budget import MOST_SOURCE, SECONDS, TemplateBudgetError

ASK = [{"role": "user", "content": "Hello"}]
TWICE = "{% set ns = namespace(x=START) %}{% for i in range(200) %}{% set ns.x = STEP %}{% endfor %}"


def doubled(start: str, step: str, then: str = "") -> str:
    return TWICE.replace("START", start).replace("STEP", step) + then


ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "loops that nothing passes": "{% for a in range(9999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a block that is called": "{% macro m(n) %}{% if n %}{{ caller() }}{{ caller() }}{% endif %}{% endmacro %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% call m(1) %}x{% endcall %}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for x in range(9) recursive %}{{ loop(range(9)) if loop.depth < 50 }}{% endfor %}",
    "long texts": "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "sums of lists": "{{ ([[1] * 100] * 99999) | sum(start=[]) | length }}",
}
LARGE = {
    "a long text": "{{ 'x' * 10000000000 }}",
    "a text, so many times": "{{ 10000000000 * 'x' }}",
    "a long list": "{{ ([0] * 10000000000) | length }}",
    "doubled with +": doubled("'x'", "ns.x + ns.x"),
    "doubled with ~": doubled("'x'", "ns.x ~ ns.x"),
    "doubled with *": doubled("'x'", "ns.x * 2"),
    "a list doubled": doubled("[1]", "ns.x + ns.x"),
    "doubled in a block": "{% set ns = namespace(x='x') %}{% for i in range(200) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "doubled in a macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + doubled("'x'", "m(ns.x)"),
    "doubled by replace": doubled("'x'", "ns.x | replace('x', 'xx')"),
    "doubled by a method": doubled("'x'", "ns.x.replace('x', 'xx')"),
    "doubled by join": doubled("'x'", "ns.x.join([ns.x, ns.x])"),
    "doubled by the filter join": doubled("'x'", "[ns.x, ns.x] | join(ns.x)"),
    "doubled by translate": doubled("'x'", "ns.x.translate({120: 'xx'})"),
    "lists in lists as text": doubled("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
    "lists in lists as JSON": doubled("[1]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
    "lists in lists, joined": doubled("[1]", "[ns.x, ns.x]", "{{ 'a' ~ ns.x }}"),
    "lists in lists, filtered": doubled("[1]", "[ns.x, ns.x]", "{{ ns.x | upper }}"),
    "lists in lists, formatted": doubled("[1]", "[ns.x, ns.x]", "{{ '%s' % (ns.x,) }}{{ '{}'.format(ns.x) }}"),
    "lists in lists, compared": doubled("[1]", "[ns.x, ns.x]", "{% set other = ns.x %}")
    + doubled("[1]", "[ns.x, ns.x]", "{{ other == ns.x }}"),
    "namespaces in namespaces": doubled("1", "namespace(a=ns.x, b=ns.x)", "{{ ns.x }}"),
    "a power": "{{ 9 ** 999999999 }}",
    "powers": doubled("9", "ns.x * ns.x"),
    "a width": "{{ 'x' | center(10000000000) }}",
    "a width of a method": "{{ 'x'.ljust(10000000000) }}",
    "a number as bytes": "{{ (1).to_bytes(10000000000, 'big') }}",
    "tabs": "{{ ('\\t' * 9999).expandtabs(9999999) }}",
    "a format": "{{ '%10000000000d' % 1 }}",
    "a format that is made": "{% set w = 10000000000 %}{{ ('%' ~ w ~ 'd') % 1 }}",
    "a format with a star": "{{ '%*d' % (10000000000, 1) }}",
    "a format method": "{{ '{:10000000000}'.format(1) }}",
    "a format in a format": "{{ '{:{}}'.format(1, 10000000000) }}",
    "an indentation": "{{ messages | tojson(indent=10000000000) }}",
    "a separator": "{{ range(99999) | join('x' * 99999) }}",
    "columns": "{{ [1] | batch(10000000000, 0) | list }}",
    "nonsense": "{{ lipsum(n=1000000) }}",
}
DAG = doubled("[1]", "[ns.x, ns.x]", "{% set other = ns.x %}") + doubled("[1]", "[ns.x, ns.x]")
TUPLES = doubled("(1,)", "(ns.x, ns.x)")
COPIES = "{% set big = BIG %}{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = [ns.x, COPY] %}{% endfor %}"
SHARED = {  # values that have others twice, in what does not read them as text
    "told as an error": DAG + "{{ raise_exception(ns.x) }}",
    "in an error of a method": DAG + "{{ [1].index(ns.x) }}",
    "in an error of what is not there": DAG + "{{ {}[ns.x].foo }}",
    "in a test": DAG + "{{ ns.x is eq(other) }}",
    "in a test of membership": DAG + "{{ ns.x is in([other]) }}",
    "in a filter with a test": DAG + "{{ [ns.x] | select('eq', other) | list | length }}",
    "in a filter with a test of members": DAG + "{{ [{'a': ns.x}] | selectattr('a', 'in', [other]) | list | length }}",
    "counted": DAG + "{{ [ns.x].count(other) }}",
    "in a loop that looks for changes": DAG + "{% for x in [ns.x, other] %}{{ loop.changed(x) }}{% endfor %}",
    "as a key": TUPLES + "{{ {ns.x: 1} | length }}",
    "looked up": TUPLES + "{{ {}.get(ns.x) }}",
    "by calls": doubled("1", "dict(a=ns.x, b=ns.x)", "{{ raise_exception(ns.x) }}"),
    "by arguments": "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}{{ raise_exception(varargs) }}"
    "{% endif %}{% endmacro %}{{ m(200, 1) }}",
    "by a factor": doubled("[1]", "[ns.x] * 2", "{{ raise_exception(ns.x) }}"),
    "by sums": doubled("[1]", "[ns.x] + [ns.x]", "{{ raise_exception(ns.x) }}"),
    "filled in": doubled(
        "[1]", "messages | map(attribute='none', default=ns.x) | batch(9, ns.x) | list", "{{ ns.x == [ns.x] }}"
    ),
    "keys": "{% set k = range(99999) | list %}" + doubled("1", "dict.fromkeys(k, ns.x)", "{{ raise_exception(ns.x) }}"),
    "slices": COPIES.replace("BIG", "'x' * 100000000").replace("COPY", "big[1:]"),
    "slices of lists": COPIES.replace("BIG", "[1] * 6000000").replace("COPY", "big[1:]"),
    "copies": COPIES.replace("BIG", "[1] * 6000000").replace("COPY", "big.copy()"),
    "words": "{{ ('xx ' * 30000000).split() | length }}",
    "stars": "{% set big = [1] * 6000000 %}{% macro m() %}{{ varargs | length }}{% endmacro %}"
    "{% for i in range(10000) %}{{ m(*big) }}{% endfor %}",
}


def refused(source: str) -> float:
    """How many seconds of the processor it takes until a template is refused; not much memory."""
    template = ChatTemplate(source)
    tracemalloc.start()
    began = time.thread_time()
    try:
        with pytest.raises(PromptError):
            template.render(ASK)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 700_000_000, f"{peak:,} bytes"
    return time.thread_time() - began


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_templates_end(name: str) -> None:
    """Red when a loop, a macro or a range goes round without paying."""
    with pytest.raises(TemplateBudgetError, match="does not come to an end"):
        ChatTemplate(ENDLESS[name]).render(ASK)
    assert refused(ENDLESS[name]) < 5 * SECONDS  # memory is traced meanwhile, which takes its time


@pytest.mark.parametrize("name", LARGE)
def test_templates_that_make_much_end(name: str) -> None:
    """Red when an operation makes something large before anybody has asked how large."""
    assert refused(LARGE[name]) < 5 * SECONDS


@pytest.mark.parametrize("name", SHARED)
def test_values_that_nothing_can_hold_are_not_made(name: str) -> None:
    """Red when a list that has another twice is not paid for with all that is in it, but only where it is written as text."""
    assert refused(SHARED[name]) < 5 * SECONDS


def test_a_template_too_long_to_be_one() -> None:
    with pytest.raises(PromptError, match=f"the most are {MOST_SOURCE:,}"):
        ChatTemplate("{{ 1 }}" * MOST_SOURCE)


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl", "glm-4.1v"])
def test_long_conversations_are_no_endless_loops(family: str) -> None:
    """Red when the budget does not grow with what there is to write."""
    chat = [{"role": ("user", "assistant")[turn % 2], "content": f"Hello {turn}"} for turn in range(20_000)]
    text = ChatTemplate(own_template(family)).render(chat)
    assert "Hello 19999" in text
    long = [{"role": "user", "content": "x" * 20_000_000}]
    assert len(ChatTemplate(own_template(family)).render(long)) > 20_000_000


def test_what_is_asked_for_in_little_time_may_take_none() -> None:
    """Red when `seconds` is not all there is: the event loop waits for nothing longer."""
    chat = [{"role": "user", "content": "Hello"}] * 20_000
    began = time.thread_time()
    with pytest.raises(TemplateBudgetError):
        ChatTemplate(own_template("qwen3-vl")).render(chat, 0.02)
    assert time.thread_time() - began < 0.2
    assert ChatTemplate(own_template("qwen3-vl")).render(ASK, 0.02) == ChatTemplate(own_template("qwen3-vl")).render(ASK)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ [1, 'b'] ~ none }}", "a1[1, 'b']None"),
        ("{{ '%s and %d' % ('a', 3) }}{{ '%05.1f' % 2.25 }}{{ '{:>5}|{}'.format('a', [1]) }}", "a and 3002.2    a|[1]"),
        (
            "{% for x in [3, 1, 2] | sort if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}none{% endfor %}",
            "1/2:2 2/2:3 ",
        ),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{{ 'Key: {}'.format(1) }}{{ '{{\"a\": {}, 12345: {:5}}}'.format(1, 2) }}", 'Key: 1{"a": 1, 12345:     2}'),
        ("{{ 'on 20241201, 100%% of 12345: %s' % 'x' }}{{ '%5s' | format('x') }}", "on 20241201, 100% of 12345: x    x"),
        ("{{ [1, 2] == [1, 2] }}{{ 1 in [1] }}{{ 'a' in 'abc' }}{{ 1 < 2 < 3 }}", "TrueTrueTrueTrue"),
        ("{{ ', '.join(['a', 'b'] | map('upper')) }}{{ ['a', 'b'] | join('-') }}", "A, Ba-b"),
        ("{{ [1, 2, 3] | sum }}{{ [[1], [2]] | sum(start=[]) }}", "6[1, 2]"),
        ("{{ 'a\nb' | indent(2) }}{{ 'x' | center(5) }}|", "a\n  b  x  |"),
        ("{{ {'a': 1} | tojson }}{{ [1] | tojson(indent=2) }}", '{"a": 1}[\n  1\n]'),
        ("{{ 2 ** 10 }}{{ 7 % 4 }}{{ 3 * 'ab' }}{{ [1] * 2 + [3] }}", "10243ababab[1, 1, 3]"),
        ("{% macro m(x) %}<{{ x }}{{ caller() if caller }}>{% endmacro %}{{ m(1) }}{% call m(2) %}!{% endcall %}", "<1><2!>"),
        (
            "{{ messages[1:] }}{{ [1, 2, 3][::-1] }}{{ 'abc'[:2] }}{{ (1, 2)[0] }}{% set a, b = (1, 2) %}{{ a }}{{ [b, [a]] }}",
            "[][3, 2, 1]ab11[2, [1]]",
        ),
        ("{{ {'a': messages[0].role, 'b': {}} }}{{ {1: 2}[1] }}{{ () }}{{ (1,) }}", "{'a': 'user', 'b': {}}2()(1,)"),
        (
            "{{ 'a' is in(['a']) }}{{ [1, 2, 1] | select('eq', 1) | list }}{{ [1, 2].count(1) }}{{ {'a': 1}.get('a') }}",
            "True[1, 1]11",
        ),
        ("{% macro m(x) %}{{ x }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, [2], c=3) }}", "1([2],){'c': 3}"),
        ("{{ 'a-b'.split('-') }}{{ 'abc'.replace('b', 'xx') }}{{ 'x'.zfill(3) }}", "['a', 'b']axxc00x"),
    ],
)
def test_templates_mean_what_they_meant(source: str, text: str) -> None:
    """Red when code that pays does something else than code that does not."""
    assert ChatTemplate(source).render(ASK) == text
    assert plain(source).render(messages=ASK) == text


def plain(source: str) -> jinja2.Template:
    """As it would be without a budget."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = lambda message: None
    return environment.from_string(source)


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl", "glm-4.1v"])
def test_ordinary_rendering_costs_no_more_than_a_tenth_of_a_millisecond(family: str) -> None:
    """Twenty turns with a picture in every other one, the best of many: red when a step costs microseconds."""
    parts: list[dict[str, Any]] = [{"type": "image"}, {"type": "text", "text": "What is on this sign?"}]
    answer = "It says that the road is closed."
    turns = [({"role": "user", "content": parts}, {"role": "assistant", "content": answer})[turn % 2] for turn in range(20)]
    ours, theirs = ChatTemplate(own_template(family)), plain(own_template(family))
    variables = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": True}
    assert ours.render(turns) == theirs.render(variables)
    with_budget, without = [], []
    for _ in range(300):
        for times, render in ((with_budget, lambda: ours.render(turns)), (without, lambda: theirs.render(variables))):
            began = time.perf_counter()
            render()
            times.append(time.perf_counter() - began)
    assert min(with_budget) - min(without) < 1e-4
