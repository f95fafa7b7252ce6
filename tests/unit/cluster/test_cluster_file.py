"""The cluster files follow Ray's schema, and problems of others are named, without a machine."""

import json
import re
from pathlib import Path

import pytest
import typer
import yaml
from helpers.sources import ROOT

from tune_dml.cli.doctor import doctor
from tune_dml.running.cluster import cluster_file
from tune_dml.running.cluster.cluster_file import cluster_file_gaps, cluster_file_notes, cluster_file_problems

FILES = ("cluster.yaml", "deploy/on_premises.yaml", "deploy/gcp.yaml")


@pytest.fixture
def home(home, monkeypatch):
    """A user with everything that Ray's launcher needs."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cluster_file, "find_spec", lambda module: module)
    monkeypatch.setattr(cluster_file, "which", lambda program: program)
    (home.parents[1] / ".ssh").mkdir()
    (home.parents[1] / ".ssh" / "tune_dml").touch()
    return home


@pytest.fixture
def filled(tmp_path):
    """Return a provided file with the user's values filled in, and optional changes."""

    def write(name, **changes):
        content = yaml.safe_load(re.sub(r"YOUR-[A-Z]+", "mine-1", (ROOT / name).read_text()))
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump({**content, **changes}))
        return file

    return write


@pytest.mark.parametrize("name", FILES)
def test_the_cluster_files_follow_the_schema_of_ray(home, filled, name):
    assert cluster_file_problems(filled(name)) == []
    assert cluster_file_notes(filled(name)) == []


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("cluster.yaml", [f"available_node_types.{kind}.node_config.ImageId" for kind in ("head", "gpu")]),
        ("deploy/gcp.yaml", ["provider.project_id"]),
        ("deploy/on_premises.yaml", []),
    ],
)
def test_values_that_the_user_must_fill_in_are_named(home, name, places):
    problems = cluster_file_gaps(ROOT / name)
    assert cluster_file_problems(ROOT / name) == []
    assert [problem.place for problem in problems] == [f"{Path(name).name}: {place}" for place in places]
    assert all(problem.rule == "must be filled in" for problem in problems)


def test_doctor_names_the_place_in_the_file(home, capsys):
    """Values that the user must fill in are no errors of the file."""
    others = dict.fromkeys(("address", "storage", "trial_files", "tracking_uri", "cache_dir", "data_root"))
    with pytest.raises(typer.Exit) as end:
        doctor(cluster=ROOT / "deploy" / "gcp.yaml", as_json=True, **others)
    assert end.value.exit_code == 0
    _, finding = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["subject"], finding["level"]) == ("gcp.yaml: provider.project_id", "note")
    assert finding["found"] == "must be filled in: YOUR-PROJECT"
    with pytest.raises(typer.Exit):
        doctor(cluster=ROOT / "deploy" / "gcp.yaml", **others)
    assert "After the steps above: `ray up " in capsys.readouterr().out


@pytest.mark.parametrize("name", FILES)
def test_the_shared_folder_is_created_before_use(name):
    """Ray syncs `file_mounts` with the token, then runs setup commands, and start commands last."""
    content = yaml.safe_load((ROOT / name).read_text())
    setup = {who: content["setup_commands"] + content.get(f"{who}_setup_commands", []) for who in ("head", "worker")}
    made = {"head": "exportfs", "worker": "mount -t nfs4"} if "available_node_types" in content else {}
    for who, commands in setup.items():
        assert not [command for command in commands if "/mnt/shared/" in command]
        assert made.get(who, "mountpoint -q /mnt/shared") in commands[-1]
    assert any(place.endswith(".ray/auth_token") for place in content["file_mounts"])


HEAD, TOKEN = "RAY_AUTH_MODE=token ray start --head", "~/.ray/auth_token"


def open_at(host):
    return {"head_start_ray_commands": [f"{HEAD} --dashboard-host{host}"]}


WRONG = {
    "unknown key": ({"max_wrkers": 2}, "max_wrkers: no such key. Did you mean 'max_workers'?"),
    "wrong type": ({"max_workers": "two"}, "max_workers: must be a whole number, but got 'two'"),
    "a list for a mapping": ({"auth": ["ssh_user"]}, "auth: must be a mapping, but got ['ssh_user']"),
    "nothing for a mapping": ({"available_node_types": None}, "available_node_types: must be a mapping"),
    "a number for a path": ({"file_mounts": {"/x": 1}}, "file_mounts./x: must be the path of the files to copy"),
    "unknown provider key": ({"provider": {"type": "aws", "regoin": "x"}}, "provider.regoin: no such key"),
    "no provider type": ({"provider": {"region": "x"}}, "provider.type: must be given"),
    "no such head": ({"head_node_type": "hd"}, "`head_node_type` must be one of"),
    "no token": ({"file_mounts": {}}, "a node without the token"),
    "open Ray": ({"worker_start_ray_commands": ["ray start"]}, "every node must require the token"),
    "a token that is asked for too late": (
        {"worker_start_ray_commands": ["ray start --address=$RAY_HEAD_IP:6379; export RAY_AUTH_MODE=token"]},
        "worker_start_ray_commands: every node must require the token",
    ),
    "open dashboard": (open_at("=0.0.0.0"), "must listen on loopback: it takes jobs, but got '0.0.0.0'"),
    "open dashboard, quoted": (open_at(" '10.0.0.7'"), "must listen on loopback: it takes jobs, but got '10.0.0.7'"),
    "nothing to mount": ({"file_mounts": {"/x": "/no/such", TOKEN: TOKEN}}, "the copied file must exist"),
    "one of several types": ({"provider": {"type": "gcp", "project_id": 17}}, "provider.project_id: must be text"),
    "a head with GPUs": (lambda head, gpu: head["node_config"].update(InstanceType="g5.xlarge"), "must offer no GPU"),
    "a head that trains": (
        lambda head, gpu: head["resources"].pop("CPU"),
        "head_node_type: the head must offer no CPU",
    ),
    "a head without drivers": (lambda head, gpu: head["resources"].pop("trial_driver"), "must offer trial_driver"),
    "Ray's own image": (
        lambda head, gpu: gpu["node_config"].pop("ImageId"),
        "available_node_types.gpu.node_config.ImageId: an image must be named",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_cluster_file_is_named_before_a_machine_starts(home, filled, case):
    change, words = WRONG[case]
    file = filled("cluster.yaml", **(change if isinstance(change, dict) else {}))
    if not isinstance(change, dict):
        content = yaml.safe_load(file.read_text())
        change(*(content["available_node_types"][kind] for kind in ("head", "gpu")))
        file.write_text(yaml.safe_dump(content))
    problems = cluster_file_problems(file)
    assert any(words in str(problem) for problem in problems), problems
    assert all(problem.place.startswith("mine.yaml: ") for problem in problems)


def test_all_problems_are_reported_together(home, filled):
    home.unlink()
    file = filled("cluster.yaml", max_wrkers=2, worker_start_ray_commands=["ray start"])
    rules = [problem.rule for problem in cluster_file_problems(file)]
    assert len(rules) == 3
    expected = {"no such key", "every node must require the token", "the token file must exist"}
    assert {rule.partition(":")[0] for rule in rules} == expected


def test_an_own_head_must_declare_that_it_offers_no_resources(home, filled):
    """Ray counts the processors and GPUs of such a machine, and no node type overrides them."""
    start = [f"RAY_enable_autoscaler_v2=0 {HEAD} --resources='{{\"trial_driver\": 64}}'"]
    problems = cluster_file_problems(filled("deploy/on_premises.yaml", head_start_ray_commands=start))
    remedies = [f"Write --num-{what}=0 after `ray start --head`." for what in ("cpus", "gpus")]
    assert [problem.remedy for problem in problems] == remedies


ON_LOOPBACK = f"{HEAD} --autoscaling-config=~/ray_bootstrap_config.yaml --dashboard-host="


@pytest.mark.parametrize(
    "changes",
    [
        *({"head_start_ray_commands": [f"{ON_LOOPBACK}{host}"]} for host in ("127.0.0.1", "localhost", "::1")),
        {"provider": {"type": "aws", "region": "us-west-2", "aws_credentials": {"aws_access_key_id": "x"}}},
    ],
)
def test_a_dashboard_on_loopback_and_credentials_of_a_provider_are_accepted(home, filled, changes):
    assert cluster_file_problems(filled("cluster.yaml", **changes)) == []


def test_workers_without_a_mounted_folder_are_reported(home, filled):
    file = filled("cluster.yaml", worker_setup_commands=["sudo mkdir -p /mnt/shared"])
    assert cluster_file_problems(file) == []
    (note,) = cluster_file_notes(file)
    assert "--trial-files" in note


def test_missing_tools_of_the_launcher_are_reported(home, filled, monkeypatch):
    monkeypatch.setattr(cluster_file, "find_spec", lambda module: None)
    (problem,) = cluster_file_gaps(filled("cluster.yaml"))
    assert problem.remedy == "pip install boto3"
    (problem,) = cluster_file_gaps(filled("deploy/gcp.yaml"))
    assert problem.remedy == "pip install google-api-python-client"
    assert cluster_file_gaps(filled("deploy/on_premises.yaml")) == []
    monkeypatch.setattr(cluster_file, "which", lambda program: None)
    (problem,) = cluster_file_gaps(filled("deploy/on_premises.yaml"))
    assert problem.remedy == "Install ssh and rsync."


def test_a_head_with_too_few_own_machines_is_named(home, filled):
    """As seen with three machines: Ray waits for ever, with a message only in its monitor's log."""
    started = filled("deploy/on_premises.yaml").read_text().replace("RAY_enable_autoscaler_v2=0", "")
    (problem,) = cluster_file_problems(filled("deploy/on_premises.yaml", **yaml.safe_load(started)))
    assert "one worker too few" in problem.rule
    (note,) = cluster_file_notes(filled("deploy/on_premises.yaml", auth={"ssh_user": "tune"}))
    assert "a key that they accept" in note
    (home.parents[1] / ".ssh" / "tune_dml").unlink()
    (problem,) = cluster_file_problems(filled("deploy/on_premises.yaml"))
    assert problem.place == "mine.yaml: auth.ssh_private_key"


def test_a_file_of_a_running_cluster_is_accepted(home, filled, monkeypatch):
    """Its logs can be read and its sweeps cancelled, whatever its head offers."""
    file = filled("cluster.yaml", file_mounts={}, head_start_ray_commands=["ray start --head"])
    assert cluster_file_problems(file)
    assert cluster_file_problems(file, to_start=False) == []
    monkeypatch.setattr(cluster_file, "find_spec", lambda module: None)
    (problem,) = cluster_file_problems(file, to_start=False)
    assert problem.remedy == "pip install boto3"


def test_a_readable_or_missing_token_file_is_refused(home, filled):
    home.chmod(0o644)
    (problem,) = cluster_file_problems(filled("cluster.yaml"))
    assert "only the owner may read" in problem.rule
    home.unlink()
    (problem,) = cluster_file_problems(filled("cluster.yaml"))
    assert "ray get-auth-token --generate" in problem.remedy


def test_a_file_without_cluster_keys_is_one_problem(tmp_path):
    for text, said in (
        (b"a: [", "x.yaml, line 1: the cluster file must be YAML"),
        (b"- 1", "a cluster file must be a mapping"),
        (b"", "the cluster file is empty"),
        (b"\x00\xff\xfe", "must be text in UTF-8"),
        (b"cluster_name: a\ncluster_name: b", "`cluster_name` is given twice"),
        (b"a: &a [*a]", "recursive"),
        (b"apiVersion: ray.io/v1\nkind: RayCluster", "must be a RayJob"),
    ):
        file = tmp_path / "x.yaml"
        file.write_bytes(text)
        (problem,) = cluster_file_problems(file)
        assert said in str(problem)
    assert len(cluster_file_problems(tmp_path / "none.yaml")) == 1


@pytest.fixture
def job(tmp_path):
    """Return our RayJob with its image filled in, and its path."""
    text = (ROOT / "deploy" / "kuberay.yaml").read_text().replace("YOUR-REGISTRY", "ghcr.io/me")
    return yaml.safe_load(text), tmp_path / "job.yaml"


def problems_of(job):
    content, file = job
    file.write_text(yaml.safe_dump(content))
    return [str(problem) for problem in cluster_file_problems(file)]


def test_the_kubernetes_job_has_what_a_sweep_needs(job):
    assert problems_of(job) == []
    (note,) = cluster_file_notes(job[1])
    assert "kubectl apply --dry-run=server" in note
    unfilled = cluster_file_gaps(ROOT / "deploy" / "kuberay.yaml")
    assert {problem.value for problem in unfilled} == {"YOUR-REGISTRY"}
    (problem,) = cluster_file_problems(job[1], to_start=False)
    assert "port-forward" in problem.remedy


GPU = {"limits": {"nvidia.com/gpu": "1"}}
WRONG_JOBS = {
    "open": (lambda cluster, head, worker: cluster.pop("authOptions"), "every pod must require the token"),
    "a head that trains": (lambda cluster, head, worker: head["rayStartParams"].pop("num-cpus"), "no CPU"),
    "a head without drivers": (lambda cluster, head, worker: head["rayStartParams"].pop("resources"), "trial_driver"),
    "a head with a GPU": (
        lambda cluster, head, worker: head["template"]["spec"]["containers"][0].update(resources=GPU),
        "the head must offer no GPU",
    ),
    "a worker without the folder": (
        lambda cluster, head, worker: worker["template"]["spec"]["containers"][0].pop("volumeMounts"),
        "workerGroupSpecs.0.template: the folder of the sweeps, /mnt/shared/sweeps, must lie in a volume of each pod",
    ),
}


@pytest.mark.parametrize("case", WRONG_JOBS)
def test_a_wrong_job_is_named_before_it_is_applied(job, case):
    change, words = WRONG_JOBS[case]
    cluster = job[0]["spec"]["rayClusterSpec"]
    change(cluster, cluster["headGroupSpec"], cluster["workerGroupSpecs"][0])
    (problem,) = problems_of(job)
    assert words in problem


def test_with_a_bucket_only_the_head_needs_the_folder(job):
    spec = job[0]["spec"]
    spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0].pop("volumeMounts")
    spec["entrypoint"] = spec["entrypoint"].replace("--storage ", "--storage=") + " --trial-files=s3://bucket/sweeps"
    assert problems_of(job) == []
    spec["entrypoint"] = "python -m tune_dml.cli sweep sec_rho"
    (problem,) = problems_of(job)
    assert "must be stored in a volume" in problem
