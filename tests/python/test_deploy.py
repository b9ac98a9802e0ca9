"""The image and the manifests of deploy/: they match each other and only refer to things that
exist; `make test-all` also checks them against the schemas of Kubernetes. No cluster is available:
docs/containers.md says what was run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def job(name: str) -> dict[str, Any]:
    """Returns the spec of the Job in a manifest."""
    last = documents(name)[-1]
    if last["kind"] == "Job":
        return last["spec"]
    (row,) = last["spec"]["replicatedJobs"]
    assert row["replicas"] == 1
    return row["template"]["spec"]


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_a_manifest_fits_itself_and_the_image(name):
    spec = job(name)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    words = container["command"]
    assert spec["completionMode"] == "Indexed"
    assert f"--nnodes={spec['completions']}" in words and spec["parallelism"] == spec["completions"]
    # Set by Kubernetes: each pod of an indexed job gets its index under this name.
    given = {row["name"] for row in container["env"]} | {"JOB_COMPLETION_INDEX"}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(words))) <= given
    assert (ROOT / words[-1]).exists() and "COPY examples" in DOCKERFILE
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{pod['securityContext']['runAsGroup']}" in DOCKERFILE
    assert f"useradd --uid {user}" in DOCKERFILE and pod["securityContext"]["runAsNonRoot"]
    labels = spec["template"]["metadata"]["labels"]
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == labels


def test_the_first_rank_has_the_name_that_the_others_call():
    service, indexed = documents("job.yaml")
    name = f"{indexed['metadata']['name']}-0.{service['metadata']['name']}"
    assert (
        f"--master-addr={name}" in job("job.yaml")["template"]["spec"]["containers"][0]["command"]
    )
    assert indexed["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == indexed["spec"]["template"]["metadata"]["labels"]
    (whole,) = documents("jobset.yaml")
    assert whole["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert whole["spec"]["network"]["enableDNSHostnames"]
    host = f"{whole['metadata']['name']}-{whole['spec']['replicatedJobs'][0]['name']}-0-0"
    assert (
        f"--master-addr={host}.{whole['metadata']['name']}"
        in job("jobset.yaml")["template"]["spec"]["containers"][0]["command"]
    )


def test_both_manifests_run_the_same_pod():
    one, other = (job(name)["template"]["spec"] for name in ("job.yaml", "jobset.yaml"))
    one.pop("subdomain")
    for spec in (one, other):
        words = spec["containers"][0]["command"]
        (host,) = (word for word in words if word.startswith("--master-addr="))
        words.remove(host)
    assert one == other


def test_the_image_has_what_setup_installs_to_build_and_the_libraries_to_run():
    setup = (ROOT / "tools" / "setup.sh").read_text()
    assert "tools/setup.sh run" in DOCKERFILE
    assert (requirement := re.search(r"^ARG TORCH=(.*)$", DOCKERFILE, re.M)) is not None
    assert f"TORCH=${{TORCH:-{requirement[1]}}}" in setup
    built = set(re.search(r'^RUN="\$NEEDED ([^"]*)"', setup, re.M)[1].split())
    # Libraries that are linked from Debian's -dev packages, or loaded.
    runtime = {
        "libhwy-dev": "libhwy1", "libisal-dev": "libisal2", "libibverbs-dev": "libibverbs1",
        "librdmacm-dev": "librdmacm1",
    }  # fmt: skip
    assert built == set(runtime)
    last = DOCKERFILE.rpartition("FROM ")[2]
    assert all(library in last for library in runtime.values())


@pytest.mark.all_tier
@pytest.mark.machine_network
def test_manifests_are_valid_by_the_schemas_of_kubernetes(tmp_path):
    """Strict: a field that Kubernetes does not know is an error. Only the job of a JobSet is checked."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "-q", "kubernetes-validate==1.37.0"]
    subprocess.run(pip, check=True, timeout=300)
    inner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "node"},
        "spec": job("jobset.yaml"),
    }
    (tmp_path / "inner.yaml").write_text(yaml.safe_dump(inner))
    (tmp_path / "wrong.yaml").write_text(
        yaml.safe_dump({**inner, "spec": {**inner["spec"], "replica": 2}})
    )

    def validate(file: Path) -> subprocess.CompletedProcess[str]:
        words = [home / "bin" / "kubernetes-validate", "--strict", "-k", "1.37", file]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    for file in (DEPLOY / "kubernetes" / "job.yaml", tmp_path / "inner.yaml"):
        done = validate(file)
        assert done.returncode == 0, done.stdout + done.stderr
    assert validate(tmp_path / "wrong.yaml").returncode != 0


@pytest.mark.all_tier
@pytest.mark.machine_network
@pytest.mark.not_everywhere
def test_the_image_runs_a_group():
    runtime = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    if (
        runtime is None
        or subprocess.run([runtime, "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs Docker or Podman")
    build = [runtime, "build", "-q", "-f", DEPLOY / "Dockerfile", "-t", "torch-mcast:test", ROOT]
    subprocess.run(build, check=True, timeout=1800)
    words = [
        runtime, "run", "--rm", "--shm-size", "1g", "torch-mcast:test", "torchrun", "--standalone",
        "--nproc-per-node", "2", "examples/hello.py",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "path: shared memory" in done.stdout, done.stdout + done.stderr
