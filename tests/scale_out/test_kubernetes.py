"""The manifests of deploy/kubernetes against a server that runs with their flags.

Red when a manifest names a metric, a path or a flag that is not there, or a pod would be killed before it has drained.
"""

import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
import yaml

from own_environment import environment_python
from scale_out.manifests import FILES, FOLDER, SPECS, container, manifest, picker_engine
from server.running import RunningServer, running, wait_for
from sightline.cli.serve import config_of_options
from sightline.ray.environment import environment

# Of a real deployment only: here are other ports, and the embedded model on a CPU.
OTHERS = ("--model", "--host", "--port", "--served-model-name")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = [flag for flag in container()["args"] if not flag.startswith(OTHERS)]
    with running(tmp_path_factory.mktemp("server"), *flags) as made:
        yield made


def flag(name: str) -> str:
    (found,) = (text for text in container()["args"] if text.startswith(f"--{name}="))
    return str(found.split("=", 1)[1])


def test_every_flag_is_one_of_the_command() -> None:
    """All that the container is given, in one go; the parser refuses what it does not know."""
    assert container()["command"] == ["sightline", "serve"]
    options = dict(text.removeprefix("--").split("=", 1) for text in container()["args"])
    made = config_of_options(options, "the Deployment")
    assert made.server.host == "0.0.0.0" and made.server.port == container()["ports"][0]["containerPort"]
    args = manifest("ray/ray-service.yaml")["spec"]["serveConfigV2"]
    (application,) = yaml.safe_load(args)["applications"]
    own = {"num_gpus", "num_cpus", "min_replicas", "max_replicas", "target_ongoing_requests", "target_kv_usage"}
    assert own < set(application["args"])
    config_of_options({name: value for name, value in application["args"].items() if name not in own}, "the RayService")


def test_every_probe_is_answered(server: RunningServer) -> None:
    pod = container()
    port = pod["ports"][0]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = pod[name]["httpGet"]
        assert probe["port"] == port["name"]
        assert httpx.get(server.url + probe["path"]).status_code == 200
    service = manifest("server/service.yaml")
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    notes = service["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == str(port["containerPort"])
    assert httpx.get(server.url + notes["prometheus.io/path"]).status_code == 200


def test_every_metric_of_the_endpoint_picker_is_a_gauge_of_ours(server: RunningServer) -> None:
    """With the labels that it reads, and numbers in them that fit the engine's memory."""
    text = server.http.get("/metrics").text
    engine = picker_engine()
    assert set(SPECS) < set(engine)
    for spec in SPECS:
        assert f"# TYPE {engine[spec]} gauge\n" in text
    (labels,) = re.findall(rf"^{engine['cacheInfoSpec']}{{(.*)}} 1.0$", text, re.MULTILINE)
    found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    size, pages = (int(found[engine[name]]) for name in ("cacheBlockSizeLabelName", "cacheNumBlocksLabelName"))
    assert (size, pages) == (16, server.stats()["pages"])


def test_names_and_labels_agree() -> None:
    deployment, labels = (
        manifest("server/deployment.yaml"),
        manifest("server/deployment.yaml")["spec"]["template"]["metadata"]["labels"],
    )
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        manifest("server/service.yaml")["spec"]["selector"],
        manifest("server/pod-disruption-budget.yaml")["spec"]["selector"]["matchLabels"],
        manifest("gateway/inference-pool.yaml")["spec"]["selector"]["matchLabels"],
        manifest("llm-d/values.yaml")["inferencePool"]["modelServers"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() and selector for selector in selectors)
    engine = picker_engine()["name"]
    assert labels["llm-d.ai/engine-type"] == labels["inference.networking.k8s.io/engine-type"] == engine
    values = manifest("llm-d/values.yaml")
    assert values["inferencePool"]["modelServerType"] == engine
    port = container()["ports"][0]["containerPort"]
    assert values["inferencePool"]["targetPorts"] == [{"number": port}]
    assert manifest("gateway/inference-pool.yaml")["spec"]["targetPorts"] == [{"number": port}]
    extension = values["inferenceExtension"]
    custom = yaml.safe_load(extension["pluginsCustomConfig"][extension["pluginsConfigFile"]])
    assert custom == manifest("gateway/endpoint-picker-config.yaml")
    used = {plugin["pluginRef"] for profile in custom["schedulingProfiles"] for plugin in profile["plugins"]}
    assert used <= {plugin["type"] for plugin in custom["plugins"]}


def test_ray_has_its_environment_in_every_pod() -> None:
    cluster = manifest("ray/ray-service.yaml")["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        for pod in group["template"]["spec"]["containers"]:
            given = {variable["name"]: variable["value"] for variable in pod["env"]}
            assert environment().items() <= given.items()


def test_a_pod_that_is_told_to_end_has_drained_before_it_is_killed(server: RunningServer) -> None:
    """SIGTERM under load: all that has begun comes to its end, and all of it within the grace period. The last of the tests
    with this server."""
    spec = manifest("server/deployment.yaml")["spec"]["template"]["spec"]
    sleeps = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = float(flag("drain-timeout-s"))
    grace = spec["terminationGracePeriodSeconds"]
    assert grace > sleeps + drain + 5
    found: list[httpx.Response] = []

    def ask(number: int) -> None:
        body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 300, "ignore_eos": True}
        found.append(httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=drain))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    wait_for(lambda: True if server.stats()["inflight_requests"] == len(threads) else None, "the requests")
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: True if httpx.get(f"{server.url}/ready").status_code == 503 else None, "the drain")
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in found] == [200] * len(threads)
    assert {answer.json()["usage"]["completion_tokens"] for answer in found} == {300}
    assert server.process.wait(grace) == 0
    assert time.monotonic() - began < grace - sleeps


@pytest.mark.slow
def test_schemas() -> None:
    """Of Kubernetes' own kinds; those of gateways, Ray and llm-d are not among them. Installing takes a while."""
    python = environment_python("kubernetes", Path(__file__).parent / "kubernetes.txt")
    own = [
        path for path in FILES if manifest(str(path.relative_to(FOLDER))).get("apiVersion") in ("v1", "apps/v1", "policy/v1")
    ]
    assert len(own) == 3
    for version in ("1.30.0", "1.35.0"):
        done = subprocess.run(
            [str(python), "-m", "kubernetes_validate", "--strict", "--kubernetes-version", version, *map(str, own)],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{shlex.join(done.args)}\n{done.stdout}{done.stderr}"


def test_without_ray_its_parts_say_what_to_install() -> None:
    if find_spec("ray") is not None:
        pytest.skip("Ray is here")
    import sightline.ray
    from sightline.errors import ConfigError

    with pytest.raises(ConfigError, match=r"Ray is not installed; it comes with the extra: pip install 'sightline-vlm\[ray\]'"):
        sightline.ray.app  # noqa: B018


def test_settings_are_there_before_ray_reads_its_environment() -> None:
    """Red when what a script imports first imports Ray, whose environment `run` sets."""
    code = "import sys; from sightline.ray import Resources, Scaling, run; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
