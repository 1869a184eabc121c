"""What the playground makes of answers: Markdown, formulas, boxes, points, copies, asking anew; on a desktop and a phone."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from server.running import MODEL, RunningServer
from server.test_playground import DEMO, SAMPLES, Visit, browser, expect, sample, visitor

__all__ = ["browser", "visitor"]  # fixtures

SIZES = {"desktop": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 780}}
SIGN = (DEMO / "sign.png").read_bytes()


@pytest.fixture(params=SIZES)
def visit(request: pytest.FixtureRequest, server: RunningServer, visitor: Callable[..., Visit]) -> Visit:
    made = visitor(server, viewport=SIZES[request.param], has_touch=request.param == "phone")
    made.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    return made.open()


def answering(visit: Visit, *answers: str) -> None:
    """The next questions get these answers, in pieces, as if the server had given them."""
    left = list(answers)

    def answer(route: Any) -> None:
        text = left.pop(0)
        pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
        chunks = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        route.fulfill(status=200, content_type="text/event-stream", body=events + "data: [DONE]\n\n")

    visit.page.route("**/v1/chat/completions", answer)


def fits(visit: Visit) -> bool:
    return bool(visit.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"))


MARKDOWN = r"""## A *report* with `code`

1. first **bold**
2. second
   - inner one
   - inner two

> quoted ~~gone~~

| name | area |
|---|---|
| circle | $\pi r^2$ |
| a \| b | 2 |

```python
print("a very long line that has to be scrolled on a phone and must not make the page any wider than its screen is")
```

Energy is \(E = mc^2\) and costs $5 or $6, 2 * 3 * 4 and snake_case_name.

$$
\int_0^1 x^2\,dx = \frac{1}{3}
$$

See [the page](https://example.org/a?b=1), https://example.org/plain. Line
two.
"""


def test_markdown_and_formulas(visit: Visit) -> None:
    answering(visit, MARKDOWN)
    visit.ask("Report.")
    answer = visit.turn(0).locator(".answer")
    expect(answer.locator("h4")).to_have_text("A report with code")
    expect(answer.locator("h4 em")).to_have_text("report")
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("ol > li strong")).to_have_text("bold")
    expect(answer.locator("ol ul li")).to_have_text(["inner one", "inner two"])
    expect(answer.locator("blockquote del")).to_have_text("gone")
    expect(answer.locator("thead th")).to_have_text(["name", "area"])
    expect(answer.locator("tbody td").nth(2)).to_have_text("a | b")
    expect(answer.locator("pre code")).to_contain_text('print("a very long line')
    assert answer.locator("math").count() == 3
    expect(answer.locator("math mfrac")).to_have_count(1)
    expect(answer.locator("math msup")).to_have_count(3)
    expect(answer).to_contain_text("costs $5 or $6, 2 * 3 * 4 and snake_case_name.")
    links = answer.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == ["https://example.org/a?b=1", "https://example.org/plain"]
    assert {link.get_attribute("rel") for link in links.all()} == {"noopener noreferrer nofollow"}
    expect(answer.locator("p br")).to_have_count(1)
    assert answer.locator("math mfrac").bounding_box()["height"] > 20, "the browser draws no fraction"
    assert fits(visit), "the page is wider than the screen"
    visit.check()


HOSTILE = """[click](javascript:document.title='owned') ![x](https://evil.example/x.png)
<img src=x onerror="document.title='owned'">
$\\href{javascript:document.title='owned'}{x}$ $\\htmlStyle{position:fixed}{x}$ $\\includegraphics{https://evil.example/y.png}$
```html
<script>document.title='owned'</script>
```
| <b>a</b> |
|---|
| <iframe src="https://evil.example"> |
<svg onload=alert(1)> [a](data:text/html,x) [b](//evil.example) $\\frac{1$ **unclosed
"""


def test_nothing_that_an_answer_says_is_markup_or_loaded(visit: Visit) -> None:
    """Red if an answer can make an element that runs, loads or leads anywhere but to the web on a click."""
    answering(visit, HOSTILE)
    visit.ask("Be hostile.")
    answer = visit.turn(0).locator(".answer")
    assert answer.locator("img, script, iframe, svg, object, b, [onerror], [onload], [style*=fixed]").count() == 0
    assert {link.get_attribute("href") for link in answer.locator("a").all()} <= {
        "https://evil.example/x.png",
        "https://evil.example/",
    }
    for kept in (
        "<img src=x onerror=",
        "<iframe src=",
        "<svg onload=alert(1)>",
        "[click](javascript:",
        "$\\frac{1$",
        "**unclosed",
    ):
        expect(answer).to_contain_text(kept)
    assert "owned" not in visit.page.title()
    visit.check()


def test_long_and_odd_texts_take_no_long_time(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    """Red when what an answer repeats makes the page hang: the work grows with the length and not with its square."""
    visit = visitor(server).open()
    took = """async (text) => {
        const { markdown } = await import("/playground/markdown.js");
        const start = performance.now();
        markdown(text);
        return performance.now() - start;
    }"""
    for text in (
        "*" * 20_000,
        "[" * 20_000,
        "`a" * 10_000,
        "$x " * 7_000,
        "> " * 9_000,
        "_a " * 7_000,
        "- " * 9_000,
        "|a" * 9_000,
    ):
        assert visit.page.evaluate(took, text) < 5000, text[:4]
    visit.check()


BOXES = """Here they are:
```json
[{"bbox_2d": [100, 200, 600, 700], "label": "a sign"}, {"point_2d": [250, 500], "label": "its middle"}, {"bbox_2d": [1, 2"""


@pytest.mark.parametrize("kind", ["thousandths", "pixels"])
def test_boxes_and_points_are_drawn_on_the_image(visit: Visit, kind: str) -> None:
    page = visit.page
    page.route("**/playground/about", lambda route: route.fulfill(json={"embedded": False, "coordinates": kind}))
    visit.open()
    expect(page.locator("#embedded")).to_be_hidden()
    answering(visit, BOXES, "<|begin_of_box|>[[0, 0, 500, 1000]]<|end_of_box|>", "Nothing is there.")
    picture = io.BytesIO()
    Image.new("RGB", (1600, 1200), (40, 90, 160)).save(picture, "PNG")
    visit.attach("blue.png", picture.getvalue())
    visit.ask("Where is it?")
    figure = visit.turn(0).locator(".marked")
    expect(figure.locator(".box")).to_have_count(1)
    expect(figure.locator(".box span")).to_have_text("a sign")
    expect(figure.locator(".point span")).to_have_text("its middle")
    image = figure.locator("img")
    width, height = image.evaluate("node => [node.naturalWidth, node.naturalHeight]") if kind == "pixels" else (1000, 1000)
    shown, box, point = (figure.locator(name).bounding_box() for name in ("img", ".box", ".point"))
    side = {"x": shown["width"] / width, "y": shown["height"] / height}
    assert box["x"] - shown["x"] == pytest.approx(100 * side["x"], abs=2)
    assert box["y"] - shown["y"] == pytest.approx(200 * side["y"], abs=2)
    assert (box["width"], box["height"]) == pytest.approx((500 * side["x"], 500 * side["y"]), abs=3)
    assert point["x"] + point["width"] / 2 - shown["x"] == pytest.approx(250 * side["x"], abs=2)
    assert point["y"] + point["height"] / 2 - shown["y"] == pytest.approx(500 * side["y"], abs=2)
    visit.ask("And the left half?")  # without an image of its own: that of the question before
    expect(visit.turn(1).locator(".marked .box")).to_have_count(1)
    visit.ask("And else?")
    expect(visit.turn(2).locator(".drawn")).to_be_hidden()
    assert fits(visit)
    visit.check()


def test_an_answer_is_copied_as_it_was_written(visit: Visit) -> None:
    answering(visit, "**bold** and $x^2$")
    visit.ask("Write.")
    button = visit.turn(0).get_by_role("button", name="Copy")
    button.click()
    expect(visit.turn(0).get_by_role("button", name="Copied")).to_be_visible()
    assert visit.page.evaluate("() => navigator.clipboard.readText()") == "**bold** and $x^2$"
    visit.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not secure')); }")
    visit.page.evaluate(
        "() => { document.execCommand = (what) => { window.copied = [what, String(document.getSelection())]; }; }"
    )
    visit.turn(0).locator(".copy").click()
    visit.page.wait_for_function("() => window.copied")
    assert visit.page.evaluate("() => window.copied[0]") == "copy"
    visit.check()


def test_a_question_is_edited_and_asked_anew(visit: Visit) -> None:
    """With its image, in place of what it was and of all that followed."""
    page = visit.page
    question, right = sample("sign.png")
    answering(visit, "wrong", "more")
    visit.attach("sign.png", SIGN)
    visit.ask("What?")
    visit.turn(0)
    visit.ask("And?")
    visit.turn(1)
    page.locator("#turns > li").nth(0).get_by_role("button", name="Edit").click()
    expect(page.locator("#question")).to_have_value("What?")
    expect(page.locator("#attachments li")).to_have_count(1)
    page.keyboard.press("Escape")  # leaves it as it was
    expect(page.locator("#editing")).to_be_hidden()
    expect(page.locator("#attachments li")).to_have_count(0)
    expect(page.locator("#turns > li")).to_have_count(2)
    page.locator("#turns > li").nth(0).get_by_role("button", name="Edit").click()
    page.unroute("**/v1/chat/completions")
    visit.ask(question)
    expect(visit.turn(0).locator(".answer")).to_have_text(right)
    expect(page.locator("#turns > li")).to_have_count(1)
    assert len(visit.bodies[-1]["messages"]) == 1
    assert visit.turn(0).locator(".shown img").evaluate("image => image.naturalWidth") > 0, "the image was given back"
    visit.check()


def test_errors_name_the_file(visit: Visit) -> None:
    page = visit.page
    page.set_input_files("#files", {"name": "letter.docx", "mimeType": "application/msword", "buffer": b"x"})
    expect(page.locator("#refused")).to_have_text("letter.docx is neither an image, a clip nor a PDF.")
    page.set_input_files("#files", {"name": "empty.png", "mimeType": "image/png", "buffer": b""})
    expect(page.locator("#refused")).to_have_text("empty.png is empty.")
    visit.attach("sign.png", SIGN)
    expect(page.locator("#refused")).to_be_hidden()
    page.set_input_files("#files", {"name": "broken.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\n and nothing"})
    visit.ask("What is this?")
    expect(visit.turn(0).locator(".problem")).to_contain_text("Image broken.png cannot be read")
    assert all("400" in line for line in visit.complaints), visit.complaints
    visit.complaints.clear()
    visit.check()


def test_the_small_model_says_what_it_is_and_offers_samples(visit: Visit) -> None:
    page = visit.page
    expect(page.locator("#embedded")).to_contain_text("reads drawn scenes like the samples and knows nothing else")
    expect(page.locator("#see-samples")).to_be_hidden()
    expect(page.locator("#samples button")).to_have_count(len(SAMPLES))
    expect(page.locator("#model")).to_be_visible()
    expect(page.locator("#model")).to_have_text(MODEL)
    visit.ask("Hello")
    visit.turn(0)
    page.get_by_role("button", name="Samples").click()
    expect(page.locator("#samples button").first).to_be_visible()
    expect(page.locator("#turns > li")).to_have_count(0)
    assert re.match(MODEL, page.title()) and fits(visit)
    visit.check()
