"""/metrics of a real server: exact counts after known requests, and counters that never go backwards."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from clips import make_clip
from server.media import data_url, image_part, text_part
from server.running import RunningServer, running, wait_for
from server.wire import abandon, connection, exchange, head, request
from sightline.bench.load.server_metrics import read_metrics, unbalanced

DOCS = Path(__file__).parents[2] / "docs"
ASK = [{"role": "user", "content": "Go on."}]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(server: RunningServer) -> Samples:
    """Value by name and labels, as a scraper sees them."""
    response = server.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    found: Samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is told twice"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found.get((f"sightline:{name}", tuple(sorted(labels.items()))), 0.0)


class Growth:
    """By how much each metric grows between its making and `by`."""

    def __init__(self, server: RunningServer) -> None:
        self._server, self._before = server, samples(server)
        self._after: Samples = {}

    def look(self) -> "Growth":
        self._server.until_idle()
        self._after = samples(self._server)
        return self

    def __call__(self, name: str, **labels: str) -> float:
        return value(self._after, name, **labels) - value(self._before, name, **labels)


def buckets(found: Samples, name: str, **labels: str) -> list[tuple[float, float]]:
    wanted = set(labels.items())
    rows = [(dict(key[1]), count) for key, count in found.items() if key[0] == f"sightline:{name}_bucket"]
    return sorted((float(row["le"]), count) for row, count in rows if wanted <= set(row.items()))


def test_the_same_image_twice_is_decoded_once(server: RunningServer) -> None:
    """Red when an image is decoded twice, or when what the counters say is not what happened."""
    grown = Growth(server)
    question = [image_part(7001), text_part("What is this?")]
    answers = [server.chat(question, max_tokens=4, extra_body={"ignore_eos": True}) for _ in range(2)]
    grown.look()
    assert grown("images_received_total") == 2
    assert grown("images_decoded_total") == grown("images_encoded_total") == 1
    assert grown("videos_received_total") == grown("videos_decoded_total") == 0
    assert grown("media_received_bytes_total", kind="image") > 100
    assert grown("patches_encoded_total") > 0

    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]
    prompts = [answer.usage.prompt_tokens for answer in answers]
    assert cached[1] > 0
    assert grown("cache_hits_total", cache="prefix") == sum(cached)
    assert grown("cache_misses_total", cache="prefix") == sum(prompts) - sum(cached)
    # The second request finds the image's tokens in the prefix cache, so its rows are not even looked for.
    assert grown("cache_misses_total", cache="embedding") == 1
    assert grown("cache_hits_total", cache="embedding") == 0

    assert grown("prompt_tokens_total") == sum(prompts)
    assert grown("generation_tokens_total") == 8
    assert grown("request_success_total", finished_reason="length") == 2
    assert grown("requests_total", route="/v1/chat/completions", status="200") == 2
    for name in ("time_to_first_token", "e2e_request_latency", "time_per_output_token"):
        assert grown(f"{name}_seconds_count") == 2
    assert grown("request_queue_time_seconds_count") == grown("request_prefill_time_seconds_count") == 2
    assert grown("inter_token_latency_seconds_count") == 2 * 3
    assert {stage: grown("vision_stage_seconds_count", stage=stage) for stage in ("fetch", "header")} == {
        "fetch": 2,
        "header": 2,
    }
    for stage in ("decode", "preprocess", "encode"):
        assert grown("vision_stage_seconds_count", stage=stage) == 1
        assert grown("vision_stage_seconds_sum", stage=stage) > 0


def test_an_image_in_another_prompt_is_found_among_embeddings(server: RunningServer) -> None:
    server.chat([image_part(7002), text_part("What is this?")])
    grown = Growth(server)
    server.chat([text_part("Another beginning."), image_part(7002), text_part("What is this?")])
    grown.look()
    assert grown("images_received_total") == 1
    assert grown("images_decoded_total") == grown("images_encoded_total") == 0
    assert grown("cache_hits_total", cache="embedding") == 1
    assert grown("cache_misses_total", cache="embedding") == 0


def test_a_video_is_counted_as_one(server: RunningServer) -> None:
    grown = Growth(server)
    url = data_url(make_clip(8, seed=71), "video/x-msvideo")
    answer = server.chat([{"type": "video_url", "video_url": {"url": url}}, text_part("What moves?")])
    grown.look()
    assert grown("videos_received_total") == grown("videos_decoded_total") == grown("videos_encoded_total") == 1
    assert grown("images_received_total") == grown("images_decoded_total") == grown("images_encoded_total") == 0
    details = answer.usage.model_dump()["prompt_tokens_details"]
    assert grown("prompt_media_tokens_total", kind="video") == details["video_tokens"] > 0


def test_refused_requests_are_counted_by_status_alone(server: RunningServer) -> None:
    grown = Growth(server)
    assert server.post(messages=[]).status_code == 400
    assert server.post("/v1/completions", prompt="a", best_of=2).status_code == 400
    grown.look()
    assert grown("requests_total", route="/v1/chat/completions", status="400") == 1
    assert grown("requests_total", route="/v1/completions", status="400") == 1
    assert grown("e2e_request_latency_seconds_count") == grown("time_to_first_token_seconds_count") == 0
    assert grown("prompt_tokens_total") == 0


def test_started_requests_are_those_that_are_over_and_those_that_are_not(server: RunningServer) -> None:
    """Finished, refused in each stage, left in the middle, and one that goes on. Red when a way out of a request is not
    counted, or counted twice."""
    grown = Growth(server)
    chat, endless = "/v1/chat/completions", {"messages": ASK, "max_tokens": 4000, "ignore_eos": True}
    with server.http.stream("POST", chat, json={**endless, "stream": True}) as response:
        lines = response.iter_lines()  # kept: the connection is closed with it
        next(lines)
        assert server.post(messages=ASK, max_tokens=1).status_code == 200
        assert server.post(messages=[]).status_code == 400
        assert server.http.post(chat, content=b"{").status_code == 400
        assert exchange(server, head("Content-Length: 999999999999")).status == 413
        assert server.post("/v1/completions", prompt="a", max_tokens=1).status_code == 200
        with connection(server) as client:
            client.sendall(request(endless))
            abandon(client)
        wait_for(lambda: server.stats()["inflight_requests"] == 1 or None, "the client that left to be forgotten")
        text = server.http.get("/metrics").text
        assert unbalanced(read_metrics(text)) is None and "requests_in_progress" in text
        assert value(samples(server), "requests_in_progress", route=chat) == 1
    grown.look()
    assert grown("requests_started_total", route=chat) == 6 and grown("requests_started_total", route="/v1/completions") == 1
    assert grown("requests_total", route=chat, status="499") == 2
    found = read_metrics(server.http.get("/metrics").text)
    assert unbalanced(found) is None
    found["sightline:requests_started_total{route=/v1/chat/completions}"] += 1
    assert "requests were started, but" in str(unbalanced(found))


def test_gauges_say_what_is_going_on(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()  # kept: the connection is closed with it
        next(lines)
        busy = samples(server)
    assert value(busy, "num_requests_running") == 1 and value(busy, "num_requests_waiting") == 0
    assert value(busy, "inflight_requests") == 1 and value(busy, "inflight_bytes") > 0
    assert 0 < value(busy, "kv_cache_usage_perc") < 1
    server.until_idle()
    idle = samples(server)
    for name in ("num_requests_running", "inflight_requests", "inflight_bytes", "kv_cache_usage_perc"):
        assert value(idle, name) == 0, name
    assert value(idle, "engine_up") == 1
    for cache in ("prefix", "embedding"):
        assert 0 < value(idle, "cache_bytes", cache=cache) <= value(idle, "cache_capacity_bytes", cache=cache)
    assert value(idle, "cache_bytes", cache="host") == value(idle, "cache_capacity_bytes", cache="host") == 0


def test_buckets_are_cumulative_and_end_with_all(server: RunningServer) -> None:
    server.chat([image_part(7003), text_part("What is this?")])
    found = samples(server)
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
        rows = buckets(found, name)
        assert rows[0][0] <= 0.001 and rows[-1] == (float("inf"), value(found, f"{name}_count"))
        assert [count for _, count in rows] == sorted(count for _, count in rows)
    assert buckets(found, "vision_stage_seconds", stage="encode")[-1][1] > 0


def test_names_are_the_same_whatever_format_is_asked_for(server: RunningServer) -> None:
    """Red when a scraper that prefers a newer format, as Prometheus does, gets the names in another spelling."""
    for accepted in ("application/openmetrics-text; version=1.0.0", "text/plain; version=1.0.0; escaping=underscores", "*/*"):
        response = server.http.get("/metrics", headers={"Accept": accepted})
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "\nsightline:images_received_total " in response.text


# ---- An engine that dies, a host cache


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Room for one image or two in the arena, the others in host memory; it may crash."""
    flags = ["--embedding-cache-gb", "0.001", "--embedding-host-cache-gb", "0.1", "--no-enable-prefix-caching"]
    flags += ["--restart-backoff-s", "0.05", "--api-key", "a-key"]
    with running(tmp_path_factory.mktemp("metrics"), *flags, key="a-key") as server:
        yield server


def test_no_counter_goes_backwards_when_the_engine_restarts(small: RunningServer) -> None:
    """Red when what a new engine tells, which begins at 0, is shown as it is."""
    question = [image_part(7004), text_part("What is this?")]
    small.chat(question)
    small.until_idle()
    before = samples(small)
    assert value(before, "images_decoded_total") >= 1
    small.kill_engine()
    wait_for(lambda: value(samples(small), "engine_restarts_total") or None, "the crash to be counted")
    down = samples(small)
    small.until_ready()
    small.chat(question)
    small.until_idle()
    after = samples(small)
    for earlier, later in ((before, down), (down, after)):
        for key, count in earlier.items():
            if key[0].endswith(("_total", "_count", "_sum", "_bucket")) and key[0].startswith("sightline:"):
                assert later[key] >= count, key
    assert value(after, "engine_restarts_total") == 1 and value(after, "engine_up") == 1
    assert value(after, "images_decoded_total") - value(before, "images_decoded_total") == 1, "the new engine knows no image"
    assert value(after, "engine_steps_total") > value(before, "engine_steps_total")
    for part in ("steps", "tower"):
        name = "engine_busy_seconds_total"
        assert 0 < value(after, name, part=part) - value(before, name, part=part) < 60


def test_hits_of_the_host_cache(small: RunningServer) -> None:
    small.until_ready()
    grown = Growth(small)
    pictures = [image_part(7010 + number) for number in range(12)]
    for picture in [*pictures, pictures[0]]:
        small.chat([picture, text_part("What is this?")], max_tokens=1)
    grown.look()
    assert grown("cache_evictions_total", cache="embedding") > 0
    assert grown("cache_hits_total", cache="host") == 1
    assert grown("cache_misses_total", cache="host") == 12
    assert grown("cache_misses_total", cache="embedding") == 13 and grown("cache_hits_total", cache="embedding") == 0
    assert grown("images_received_total") == 13
    assert grown("images_decoded_total") == grown("images_encoded_total") == 12
    assert value(samples(small), "cache_bytes", cache="host") > 0


def test_metrics_need_no_key_and_tell_none(small: RunningServer) -> None:
    response = httpx.get(f"{small.url}/metrics", timeout=60)
    assert response.status_code == 200 and "a-key" not in response.text


# ---- Docs


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"sightline:\w+", text))


def dashboard() -> Any:
    return json.loads((DOCS / "grafana-dashboard.json").read_text())


def expressions(panels: list[Any]) -> list[str]:
    nested = [query for panel in panels for query in expressions(panel.get("panels", []))]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])] + nested


def test_the_dashboard_asks_for_metrics_that_exist(server: RunningServer) -> None:
    server.chat()
    exposed = {name for name, _ in samples(server)}
    asked = {name for expression in expressions(dashboard()["panels"]) for name in metric_names(expression)}
    assert len(asked) > 20
    assert asked <= exposed


def test_the_dashboard_groups_by_labels_that_exist(server: RunningServer) -> None:
    server.chat()
    of_the_scraper = {"job", "instance"}
    labels: dict[str, set[str]] = {}
    for name, own in samples(server):
        labels.setdefault(name, set()).update(label for label, _ in own)
    for expression in expressions(dashboard()["panels"]):
        known = set.intersection(*(labels[name] for name in metric_names(expression)))
        grouped = {label.strip() for part in re.findall(r"by \(([^)]*)\)", expression) for label in part.split(",")}
        matched = {label for part in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)(?:=|!=)", part)}
        assert (grouped | matched) - of_the_scraper <= known, expression


def test_the_dashboard_can_be_imported() -> None:
    """Panels do not overlap, have ids of their own, and take their data from what the user chooses at import."""
    board = dashboard()
    assert board["schemaVersion"] >= 36 and board["title"] and board["uid"]
    source = next(variable for variable in board["templating"]["list"] if variable["type"] == "datasource")
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": f"${{{source['name']}}}"}, panel["title"]
            assert panel["targets"] and panel["description"]
    cells = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not own & cells, f"{panel['title']} covers another panel"
        cells |= own


def test_the_docs_name_every_metric_and_no_other(server: RunningServer) -> None:
    server.chat()
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    exposed = {family.name + "_total" * (family.type == "counter") for family in families if ":" in family.name}
    table = (DOCS / "metrics.md").read_text().split("## ")
    rows = {name for section in table for name in re.findall(r"^\| `(sightline:\w+)", section, re.MULTILINE)}
    assert rows == exposed
