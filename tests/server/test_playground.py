"""The playground in a real Chromium against a real server."""

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from media.pdfs import encrypted, picture_pdf
from server.media import png
from server.running import ADMIN, MODEL, RunningServer, running

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")
expect = sync_api.expect

DEMO = Path(str(resources.files("sightline.data"))) / "demo"
SAMPLES = json.loads((DEMO / "questions.json").read_text())
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
PATIENCE_MS = 60_000
FOREIGN = "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"  # no name is resolved: nothing but loopback can be reached


def sample(name: str) -> tuple[str, str]:
    """Question about a sample and its right answer."""
    found = next(one for one in SAMPLES if [*one["images"], *one["videos"]][0] == name)
    return found["question"], found["answer"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        found = next(filter(None, map(shutil.which, NAMES)), str(own) if own.exists() else None)
        if found is None:
            pytest.skip(f"no Chromium on this machine: none of {', '.join(NAMES)} is installed")
        expect.set_options(timeout=PATIENCE_MS)
        made = playwright.chromium.launch(executable_path=found, args=[f"--host-resolver-rules={FOREIGN}"])
        yield made
        made.close()


WATCH = """() => {
    window.seen = [];
    const look = () => window.seen.push(document.querySelector("#turns .answer")?.textContent ?? "");
    new MutationObserver(look).observe(document.getElementById("turns"), { childList: true, subtree: true });
}"""


@dataclass
class Visit:
    """A page, and all that it complained about and asked for."""

    page: Any
    server: RunningServer
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        page = self.page
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: self.requests.append(asked.url))
        page.on("request", lambda asked: self._keep(asked.url, asked.post_data))

    def _keep(self, url: str, body: str | None) -> None:
        if body is not None and url.endswith("/v1/chat/completions"):
            self.bodies.append(json.loads(body))

    def open(self) -> "Visit":
        self.page.goto(self.server.url)
        expect(self.page.locator("#samples button")).to_have_count(len(SAMPLES))
        return self

    def attach(self, name: str, data: bytes) -> None:
        self.page.set_input_files("#files", {"name": name, "mimeType": "image/png", "buffer": data})
        expect(self.page.locator("#attachments li")).not_to_have_count(0)

    def ask(self, question: str) -> None:
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")

    def turn(self, number: int) -> Any:
        """The turn of this number, once it is over."""
        turn = self.page.locator("#turns > li").nth(number)
        expect(turn).not_to_have_class(re.compile("streaming"))
        return turn

    def check(self) -> None:
        assert self.complaints == []
        foreign = [url for url in self.requests if not url.startswith((f"{self.server.url}/", "blob:", "data:"))]
        assert foreign == []


@pytest.fixture
def visitor(browser: Any) -> Iterator[Callable[..., Visit]]:
    contexts = []

    def make(server: RunningServer, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        contexts.append(context)
        return Visit(context.new_page(), server)

    yield make
    for context in contexts:
        context.close()


def test_an_image_is_asked_about_twice(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    """The whole way: a file is chosen, the right answer streams in, the stages are shown; the second time they are cached."""
    assert server.http.post("/flush_cache", headers={"Authorization": f"Bearer {ADMIN}"}).status_code == 200
    question, answer = sample("sign.png")
    visit = visitor(server).open()
    page = visit.page
    expect(page.locator("#model")).to_have_text(MODEL)
    expect(page.locator("#status")).to_have_text("Ready")
    expect(page.locator("#ask")).to_be_disabled()
    visit.attach("sign.png", (DEMO / "sign.png").read_bytes())
    page.evaluate(WATCH)
    visit.ask(question)
    first = visit.turn(0)
    expect(first.locator(".answer")).to_have_text(answer)
    assert len(page.evaluate("() => [...new Set(window.seen)]")) > 1, "the answer came in one piece"
    assert first.locator(".shown img").evaluate("image => image.naturalWidth") > 0
    expect(page.locator("#attachments li")).to_have_count(0)
    expect(first.locator(".facts")).to_contain_text("1 image encoded")
    stages = first.locator(".stages tr")
    names = "fetch header prompt queue decode preprocess encode prefill".split()
    assert stages.evaluate_all("rows => rows.map(row => row.dataset.stage)")[:8] == names
    for stage in ("decode", "encode", "prefill"):
        expect(first.locator(f"[data-stage={stage}] .bar")).to_be_visible()
        expect(first.locator(f"[data-stage={stage}] td").last).to_contain_text(re.compile(r"\d m?s"))

    visit.ask(question)
    second = visit.turn(1)
    for stage in ("decode", "preprocess", "encode"):
        expect(second.locator(f"[data-stage={stage}] td").last).to_have_text("✓ cached")
    expect(second.locator(".facts")).to_contain_text("1 image cached")
    cached = re.search(r"(\d+) of them cached", second.locator(".facts").inner_text())
    assert cached is not None and int(cached[1]) > 0
    # The conversation goes along: what was asked with its image, what was answered, what is asked now.
    assert [message["role"] for message in visit.bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert visit.bodies[1]["messages"][:1] == visit.bodies[0]["messages"]
    assert visit.bodies[1]["messages"][1]["content"] == answer
    visit.check()


def test_a_sample_is_one_click(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    visit = visitor(server).open()
    for name in ("two_images_1.png", "video.mkv"):
        question, answer = sample(name)
        visit.page.get_by_role("button", name=question).click()
        turn = visit.turn(0)
        expect(turn.locator(".asked .text")).to_have_text(question)
        expect(turn.locator(".answer")).to_have_text(answer)
        expect(visit.page.locator("#welcome")).to_be_hidden()
        visit.page.get_by_role("button", name="New conversation").click()
        expect(visit.page.locator("#turns li")).to_have_count(0)
        expect(visit.page.locator("#welcome")).to_be_visible()
    visit.check()


GIVE = """([kind, name, base64]) => {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, { type: "image/png" }));
    const options = { bubbles: true, cancelable: true };
    document.body.dispatchEvent(kind === "paste"
        ? new ClipboardEvent("paste", { ...options, clipboardData: data })
        : new DragEvent(kind, { ...options, dataTransfer: data }));
}"""


def test_images_are_dropped_and_pasted_and_removed(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    visit = visitor(server).open()
    page, items = visit.page, visit.page.locator("#attachments li")
    encoded = base64.b64encode(png(8001)).decode()
    page.evaluate(GIVE, ["dragenter", "one.png", encoded])
    expect(page.locator("#dropzone")).to_be_visible()
    page.evaluate(GIVE, ["drop", "one.png", encoded])
    expect(items).to_have_count(1)
    expect(page.locator("#dropzone")).to_be_hidden()
    page.evaluate(GIVE, ["paste", "two.png", base64.b64encode(png(8002)).decode()])
    expect(items).to_have_count(2)
    page.get_by_role("button", name="Remove one.png").click()
    expect(items).to_have_count(1)
    expect(items.locator("img")).to_have_attribute("alt", "two.png")
    visit.ask("What is this?")
    visit.turn(0)
    (part,) = [part for part in visit.bodies[0]["messages"][0]["content"] if part["type"] == "image_url"]
    assert base64.b64decode(part["image_url"]["url"].partition(",")[2]) == png(8002)
    visit.check()


def test_a_pdf_is_asked_about(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    question, answer = sample("sign.png")
    visit = visitor(server).open()
    page = visit.page
    data = picture_pdf(Image.open(DEMO / "sign.png"))
    page.set_input_files("#files", {"name": "sign.pdf", "mimeType": "application/pdf", "buffer": data})
    expect(page.locator("#attachments li .clip")).to_have_text("PDF sign.pdf")
    visit.ask(question)
    turn = visit.turn(0)
    expect(turn.locator(".answer")).to_have_text(answer)
    expect(turn.locator(".facts")).to_contain_text("1 image encoded")
    (part, _) = visit.bodies[0]["messages"][0]["content"]
    assert part["file"]["filename"] == "sign.pdf"
    page.set_input_files("#files", {"name": "locked.pdf", "mimeType": "", "buffer": encrypted(b"secret")})
    visit.ask(question)
    expect(visit.turn(1).locator(".problem")).to_contain_text("PDF locked.pdf cannot be read: it is encrypted with a password.")
    visit.complaints.clear()  # the browser itself notes a refused request
    visit.check()


def test_images_are_asked_about_as_a_video(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    visit = visitor(server).open()
    page = visit.page
    frames = [{"name": f"{seed}.png", "mimeType": "image/png", "buffer": png(seed)} for seed in range(8010, 8014)]
    page.set_input_files("#files", frames[:1])
    expect(page.locator("#as-video")).to_be_hidden()
    page.set_input_files("#files", frames[1:])
    expect(page.locator("#attachments li")).to_have_count(4)
    page.get_by_label("These images are frames of one video").check()
    page.get_by_label("a second").fill("4")
    visit.ask("What is this?")
    turn = visit.turn(0)
    expect(turn.locator(".facts")).to_contain_text("1 clip encoded")
    expect(turn.locator(".shown .clip")).to_have_text("▶ 4 frames")
    (part, _) = visit.bodies[0]["messages"][0]["content"]
    assert len(part["video_url"]["url"]) == 4 and part["video_url"]["fps"] == 4
    expect(page.locator("#as-video")).to_be_hidden()
    visit.check()


def test_an_error_is_a_sentence_and_the_conversation_goes_on(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    visit = visitor(server).open()
    visit.attach("broken.png", b"\x89PNG\r\n\x1a\n and then nothing of the kind")
    visit.ask("What is this?")
    problem = visit.turn(0).locator(".problem")
    expect(problem).to_contain_text("Error 400")
    expect(problem).to_contain_text("cannot be")
    expect(problem.get_by_role("button", name="Try again")).to_be_visible()
    question, answer = sample("sign.png")
    visit.attach("sign.png", (DEMO / "sign.png").read_bytes())
    visit.ask(question)
    expect(visit.turn(1).locator(".answer")).to_have_text(answer)
    assert len(visit.bodies[1]["messages"]) == 1, "what failed is sent again"
    assert all("400" in line for line in visit.complaints), visit.complaints  # the browser itself notes a refused request
    visit.complaints.clear()
    visit.check()


def test_settings_go_with_the_question(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    visit = visitor(server).open()
    page = visit.page
    page.fill("#temperature", "0.7")
    expect(page.locator("#temperature-shown")).to_have_text("0.7")
    page.fill("#max-tokens", "3")
    page.fill("#seed", "11")
    page.fill("#max-pixels", "100352")
    page.fill("#system", "Be brief.")
    visit.ask("Hello")
    visit.turn(0)
    body = visit.bodies[0]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.7, 3, 11)
    assert body["mm_processor_kwargs"] == {"max_pixels": 100_352}
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    page.fill("#max-tokens", "0")  # not sound: nothing is asked
    visit.ask("Hello again")
    expect(page.locator("#turns > li")).to_have_count(1)
    visit.check()


def lengthen(route: Any) -> None:
    """Makes the page's own request a long one on its way to the server."""
    body = {**json.loads(route.request.post_data), "max_tokens": 4000, "ignore_eos": True}
    route.continue_(post_data=json.dumps(body))


def test_stop_ends_the_answer_here_and_in_the_engine(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    visit = visitor(server).open()
    page = visit.page
    page.route("**/v1/chat/completions", lengthen)
    visit.ask("Go on and on.")
    expect(page.locator("#turns .answer")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(visit.turn(0).locator(".problem")).to_contain_text("Stopped")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_visible()
    assert server.until_idle()["running"] == 0
    visit.check()


def test_markup_in_questions_and_answers_is_text(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    """A model may be made to say anything. Here an answer in place of the server's is hostile."""
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    visit = visitor(server).open()

    def answer(route: Any) -> None:
        chunks = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in (hostile[:7], hostile[7:])]
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        route.fulfill(status=200, content_type="text/event-stream", body=events + "data: [DONE]\n\n")

    visit.page.route("**/v1/chat/completions", answer)
    visit.ask(hostile)
    turn = visit.turn(0)
    expect(turn.locator(".answer")).to_have_text(hostile)
    expect(turn.locator(".asked .text")).to_have_text(hostile)
    assert turn.locator("img, script").count() == 0
    assert "owned" not in visit.page.title()
    visit.check()


def test_light_and_dark(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    colour = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = (visitor(server, color_scheme=scheme).open() for scheme in ("light", "dark"))
    as_light, as_dark = light.page.evaluate(colour), dark.page.evaluate(colour)
    assert sum(map(int, re.findall(r"\d+", as_light))) > 600 > 200 > sum(map(int, re.findall(r"\d+", as_dark)))
    for wanted in (as_light, as_dark, as_light):  # light, dark, as the system has it
        light.page.locator("#theme").click()
        assert light.page.evaluate(colour) == wanted
    light.check()
    dark.check()


def test_a_narrow_screen_has_all_of_it(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    visit = visitor(server, viewport={"width": 390, "height": 780}).open()
    page = visit.page
    expect(page.locator("#settings")).to_be_hidden()
    visit.ask("Hello")
    visit.turn(0)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen"
    page.get_by_role("button", name="Settings").click()
    expect(page.locator("#temperature")).to_be_visible()
    visit.check()


def test_every_control_has_a_name(server: RunningServer, visitor: Callable[..., Visit]) -> None:
    """For those who hear the page. And what a keyboard reaches first is what one came for."""
    visit = visitor(server).open()
    visit.attach("sign.png", (DEMO / "sign.png").read_bytes())
    nameless = """() => [...document.querySelectorAll("button, input, textarea")]
        .filter((node) => !node.labels?.length && !node.ariaLabel && !node.textContent.trim()).map((node) => node.id)"""
    assert visit.page.evaluate(nameless) == []
    expect(visit.page.locator("#question")).to_be_focused()
    visit.page.keyboard.press("Tab")
    expect(visit.page.locator("#attach")).to_be_focused()
    visit.check()


@pytest.fixture(scope="module")
def closed(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for a key, and whose engine may be killed."""
    flags = ["--api-key", "the-key", "--restart-backoff-s", "0.05"]
    with running(tmp_path_factory.mktemp("closed"), *flags, key="the-key") as server:
        yield server


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(closed: RunningServer, visitor: Callable[..., Visit]) -> None:
    assert httpx.get(closed.url, timeout=60).status_code == 200
    visit = visitor(closed).open()
    page = visit.page
    expect(page.locator("#model")).to_have_text("API key needed")
    expect(page.locator("#key")).to_be_focused()
    visit.ask("Hello")
    expect(visit.turn(0).locator(".problem")).to_contain_text("Error 401")
    page.fill("#key", "the-key")
    page.press("#key", "Tab")
    expect(page.locator("#model")).to_have_text(MODEL)
    page.get_by_role("button", name="Try again").click()
    expect(visit.turn(0).locator(".facts")).to_be_visible()
    assert page.evaluate("() => Object.values(sessionStorage)") == ["the-key"]
    assert "the-key" not in page.evaluate("() => JSON.stringify([localStorage, document.cookie, location.href])")
    page.reload()
    expect(page.locator("#model")).to_have_text(MODEL)
    assert all("401" in line for line in visit.complaints), visit.complaints
    visit.complaints.clear()
    visit.check()


def test_an_engine_that_dies_in_mid_answer(closed: RunningServer, visitor: Callable[..., Visit]) -> None:
    """The page says so, shows when it is back, and the question can be asked again."""
    visit = visitor(closed).open()
    page = visit.page
    page.fill("#key", "the-key")
    page.press("#key", "Tab")
    expect(page.locator("#model")).to_have_text(MODEL)
    page.route("**/v1/chat/completions", lengthen)
    visit.ask("Go on and on.")
    expect(page.locator("#turns .answer")).not_to_be_empty()
    closed.kill_engine()
    expect(visit.turn(0).locator(".problem")).to_contain_text("The engine stopped while it worked on this request.")
    page.unroute("**/v1/chat/completions")
    expect(page.locator("#status")).to_have_attribute("data-state", "busy")
    expect(page.locator("#status")).to_have_text("Ready")
    page.get_by_role("button", name="Try again").click()
    expect(visit.turn(0).locator(".facts")).to_be_visible()
    expect(visit.turn(0).locator(".problem")).to_be_hidden()
    assert all("401" in line or "503" in line for line in visit.complaints), visit.complaints
    visit.complaints.clear()
    visit.check()
