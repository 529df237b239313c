import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from flows.process.child import GRACE_SECONDS
from flows.process.settings import tracked
from flows.submit import main

REPOSITORY = Path(__file__).parents[2]
TEMPLATES = REPOSITORY / "flows/cluster/templates"
KUBERNETES = "1.37"

Submit = Callable[..., str]

# Replacements of Slurm's commands, which record their calls; srun runs its command once, as node 1, or ends with $ENDS.
FAKES = {
    "sbatch": 'cat > "$HERE/job.sbatch"; echo "Submitted batch job 7"',
    "scontrol": 'echo "$*" >> "$HERE/scontrol.calls"; [ "$2" = hostnames ] && printf "node-a\\nnode-b\\n"; '
    '[ "$2" = node ] && printf "NodeName=%s Arch=x86_64\\n   NodeAddr=$ADDRESS NodeHostName=%s\\n" "$3" "$3"; true',
    "srun": 'echo "$*" >> "$HERE/srun.calls"; [ -n "$ENDS" ] && exit "$ENDS"; shift 2; SLURM_NODEID=1 "$@"',
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a committed repository, whose stage train needs no other stage, and Slurm's commands."""
    folder = tmp_path_factory.mktemp("submit")
    root = folder / "repository"
    root.mkdir()
    (root / "params.yaml").write_bytes((REPOSITORY / "transformer_core/recipes/synthetic.yaml").read_bytes())
    (root / "dvc.yaml").write_text("stages:\n  train:\n    cmd: 'true'\n    deps: [corpora]\n    outs: [train.txt]\n")
    (root / "corpora").mkdir()
    (root / "corpora/README.md").touch()
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    dvc = [sys.executable, "-m", "dvc"]
    for command in (["git", "init", "-q"], [*dvc, "init", "-q"], ["git", "add", "-A"], ["git", *author, "commit", "-qm", "a"]):
        subprocess.run(command, cwd=root, check=True)
    (folder / "bin").mkdir()
    for name, body in FAKES.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.fixture
def repository(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository as the working directory, with Slurm's commands in the path."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "repository")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in {"HERE": tmp_path, "ADDRESS": "10.0.0.1", "HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TRANSFORMER_CLONES", raising=False)
    return tmp_path / "repository"


@pytest.fixture
def submit(repository: Path, capfd: pytest.CaptureFixture[str]) -> Submit:
    """The output of `python -m flows.submit`, which must end with `code`."""
    assert repository.exists()

    def submitted(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert main(arguments) == code
        return "".join(capfd.readouterr())

    return submitted


SLURM = ["slurm", "--nodes", "2", "--gpus", "8", "--time", "24:00:00", "--partition", "gpu"]


def test_a_slurm_job_is_shown_and_not_submitted_by_a_dry_run(submit: Submit, tmp_path: Path) -> None:
    job = submit(*SLURM, "--dry-run")
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "#SBATCH --time=24:00:00", "#SBATCH --partition=gpu"} <= set(job.splitlines())
    subprocess.run(["bash", "-n"], input=job, text=True, check=True)
    assert not (tmp_path / "job.sbatch").exists()
    asked = next(line for line in job.splitlines() if line.startswith("#SBATCH --signal=TERM@"))
    assert int(asked.partition("@")[2]) > GRACE_SECONDS
    assert "gpus-per-node" not in submit("slurm", "--time", "1:00:00", "--dry-run")


def run_job(tmp_path: Path, ends: int | None = None, restarts: int = 0) -> int:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_RESTART_COUNT": str(restarts)}
    environment = {**os.environ, **slurm, "TRANSFORMER_STATE": str(tmp_path), "ENDS": "" if ends is None else str(ends)}
    return subprocess.run(["bash", tmp_path / "job.sbatch"], env=environment, capture_output=True, check=False).returncode


def requeued(tmp_path: Path) -> bool:
    return "requeue 7" in (tmp_path / "scontrol.calls").read_text().splitlines()


def test_a_submitted_slurm_job_starts_a_node_with_its_place_in_the_group(submit: Submit, repository: Path, tmp_path: Path) -> None:
    assert "Submitted batch job 7" in submit(*SLURM)
    (tmp_path / "bin/bash").write_text(
        '#!/bin/sh\n[ "$1" = -c ] || exec /bin/bash "$@"\nprintenv TRANSFORMER_NODES TRANSFORMER_RENDEZVOUS SLURM_NODEID '
        'TRANSFORMER_CLONES > "$HERE/told"\n'
        'shift 3\nprintf "%s\\n" "$@" >> "$HERE/told"\n'
    )
    (tmp_path / "bin/bash").chmod(0o755)
    assert run_job(tmp_path) == 0
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    told = (tmp_path / "told").read_text().splitlines()
    settings = str(tmp_path / "settings-7.json")
    command = [
        sys.executable,
        "-m",
        "flows.cluster.node",
        "train",
        "--repository",
        str(repository),
        "--commit",
        commit,
        "--settings",
        settings,
    ]
    assert told == ["2", "10.0.0.1:29400", "1", str(tmp_path / ".cache/transformer-pipeline/slurm-7"), *command]
    assert not requeued(tmp_path)


# Exit code of the node, restarts before it, and whether the job is queued again.
ENDS = [(75, 99, True), (75, 100, False), (69, 0, True), (137, 2, True), (143, 3, False), (65, 0, False), (1, 0, False)]


def test_a_slurm_job_that_was_stopped_is_queued_again(submit: Submit, tmp_path: Path) -> None:
    submit(*SLURM)
    for ends, restarts, again in ENDS:
        (tmp_path / "scontrol.calls").unlink(missing_ok=True)
        assert run_job(tmp_path, ends, restarts) == ends
        assert requeued(tmp_path) is again, (ends, restarts)
        assert (tmp_path / "settings-7.json").exists() is again
        if again:
            assert json.loads((tmp_path / "settings-7.json").read_text()) == tracked()


def test_without_shared_storage_a_slurm_job_says_so(submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(*SLURM)
    monkeypatch.delenv("TRANSFORMER_STATE", raising=False)
    done = subprocess.run(["bash", tmp_path / "job.sbatch"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "set it to a folder of storage that all nodes share" in done.stderr


def test_what_is_not_committed_is_not_submitted(submit: Submit, repository: Path) -> None:
    refused = ": not committed, and another machine runs what is. Commit and push it, large files by dvc add, then run again.\n"
    (repository / "corpora/mine.yaml").write_text("name: mine\n")
    assert submit(*SLURM, code=78) == f"corpora/mine.yaml{refused}"
    (repository / "corpora/mine.yaml").unlink()
    (repository / "corpora/README.md").write_text("changed\n")
    assert submit(*SLURM, code=78) == f"corpora/README.md{refused}"
    (repository / "corpora/README.md").write_text("")
    (repository / "attention").mkdir()
    (repository / "attention/weights.npz").touch()
    (repository / "a note.txt").touch()
    (repository / "params.yaml").write_text((repository / "params.yaml").read_text() + "\n")
    assert "Submitted" in submit(*SLURM)


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_kubernetes_job_is_valid_and_its_pods_find_each_other(submit: Submit, gpus: int) -> None:
    text = submit("kubernetes", "--image", "registry.example/transformer-pipeline:1", "--nodes", "2", "--gpus", str(gpus), "--dry-run")
    service, settings, job = YAML(typ="safe").load_all(text)
    for document in (service, settings, job):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    assert json.loads(settings["data"]["settings.json"]) == tracked()
    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["completionMode"]) == (2, 2, "Indexed")
    assert pod["terminationGracePeriodSeconds"] > GRACE_SECONDS
    environment = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert environment["TRANSFORMER_RENDEZVOUS"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}:29400"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert pod["volumes"][2]["configMap"]["name"] == settings["metadata"]["name"]
    assert pod["containers"][0].get("resources", {}).get("limits") == ({"nvidia.com/gpu": 8} if gpus else None)


def test_a_kubernetes_job_of_other_settings_or_another_commit_has_another_name(submit: Submit, repository: Path) -> None:
    def name(*options: str) -> str:
        found = re.search(r"job-name: (\S+)", submit("kubernetes", "--image", "i", *options, "--dry-run"))
        assert found is not None
        return found[1]

    first = name()
    assert re.fullmatch(r"transformer-train-[0-9a-f]{8}", first)
    assert name() == first
    assert name("--nodes", "2") != first
    params = repository / "params.yaml"
    text = params.read_text()
    params.write_text(text.replace("warmup: 400", "warmup: 401"))
    assert name() != first
    params.write_text(text)
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "b"], check=True)
    assert name() != first


def manifest_of(variables: dict[str, Any]) -> Any:
    """The job that the Kubernetes worker would create for a run of training-node in a pool of our template."""
    from prefect.client.schemas.objects import Flow, FlowRun
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    template = json.loads((TEMPLATES / "kubernetes-pool.json").read_text(encoding="utf-8"))
    # The template has no block or variable that a server would be asked for.
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        configuration = asyncio.run(KubernetesWorkerJobConfiguration.from_template_and_values(template, variables))
        flow = Flow(name="node")
        configuration.prepare_for_flow_run(FlowRun(flow_id=flow.id, name="train-0"), flow=flow)
    return configuration.job_manifest


def test_a_run_in_the_kubernetes_pool_is_a_valid_job_with_gpus_and_time_to_save() -> None:
    manifest = manifest_of({"image": "registry.example/transformer-pipeline:1", "gpus": 2, "env": {"MLFLOW_TRACKING_URI": "http://m"}})
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    assert manifest["spec"]["backoffLimit"] == 0
    pod = manifest["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > GRACE_SECONDS
    container = pod["containers"][0]
    assert container["image"] == "registry.example/transformer-pipeline:1"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["MLFLOW_TRACKING_URI"] == "http://m"
    assert environment["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] == "reschedule"


def test_the_kubernetes_pool_asks_for_what_the_worker_knows() -> None:
    from prefect_kubernetes.worker import KubernetesWorker

    ours = json.loads((TEMPLATES / "kubernetes-pool.json").read_text(encoding="utf-8"))
    theirs = KubernetesWorker.get_default_base_job_template()
    assert set(ours["job_configuration"]) == set(theirs["job_configuration"])
    placeholders = set(re.findall(r"{{ (\w+) }}", json.dumps(ours["job_configuration"])))
    assert placeholders == set(ours["variables"]["properties"])
