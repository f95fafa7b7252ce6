"""Uploads of a submitted command, and refused commands, without a cluster."""

import importlib.metadata
import os
import shlex
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace as Details

import pytest
from ray.thirdparty_files import psutil

from trainables.errors import ConfigError
from tune_dml.cli.cancel import cancel
from tune_dml.cli.submit import _commands_for, read_command
from tune_dml.running.cluster import cluster_file, jobs, upload
from tune_dml.running.cluster.upload import Upload, collect_upload


class Client:
    def __init__(self, *jobs_there):
        self.there = list(jobs_there)
        self.taken = []
        self.sent = ""

    def list_jobs(self):
        told = {"tune_dml.sweep": "a", "tune_dml.sent": self.sent}
        return [
            Details(submission_id=name, metadata=told, start_time=n, message="", status=Details(value=status))
            for n, (name, status) in enumerate(self.there)
        ]

    def submit_job(self, *, submission_id, runtime_env, metadata, **rest):
        self.environment = runtime_env["env_vars"]
        if submission_id in dict(self.there):
            raise RuntimeError(f"Job with submission_id {submission_id} already exists.")
        self.taken.append(submission_id)
        self.sent = metadata["tune_dml.sent"]
        self.there.append((submission_id, "RUNNING"))


def test_the_ssh_of_a_tunnel_ends_with_it(tmp_path, monkeypatch):
    """Each command to a cluster file left one running."""
    (tmp_path / "ray").write_text(
        f"#!{sys.executable} -S\nimport subprocess, sys\nport = sys.argv[sys.argv.index('--port') + 1]\n"
        'listens = "import os, socket, time; s = socket.create_server((\'127.0.0.1\', " + port + "))"\n'
        f"listens += \"; open('{tmp_path}/pid', 'w').write(str(os.getpid())); time.sleep(60)\"\n"
        "subprocess.check_call([sys.executable, '-S', '-c', listens])"
    )
    (tmp_path / "ray").chmod(0o755)
    monkeypatch.setattr(jobs, "sys", Details(executable=str(tmp_path / "python")))
    monkeypatch.setattr(cluster_file, "cluster_file_problems", lambda path, to_start: [])
    with jobs._tunnel("cluster.yaml"):
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
            time.sleep(0.02)
        ssh = psutil.Process(int((tmp_path / "pid").read_text()))
    with suppress(psutil.NoSuchProcess):
        while ssh.status() != psutil.STATUS_ZOMBIE:  # until pytest's time limit
            time.sleep(0.02)


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "own"
    for name in ("loss.py", "sub/model.py", ".env", "id_rsa", "sub/server.pem", ".git/config", "mlflow.db", ".aws/x"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    for name in ("toy.egg-info", "tune_dml.egg-info"):
        (folder / name).mkdir()
        (folder / name / "entry_points.txt").write_text("[tune_dml.losses]")
    (folder / "outside").symlink_to("/etc/passwd")
    return folder


def test_the_upload_has_the_named_files_and_no_secret(own):
    upload = collect_upload([], own)
    assert {"tune_dml/cli/submit.py", "trainables/training.py", "search_spaces/published.csv"} <= upload.files.keys()
    assert {"loss.py", "sub/model.py", "toy.egg-info/entry_points.txt"} <= upload.files.keys()
    assert "tune_dml.egg-info/entry_points.txt" not in upload.files
    assert sorted(upload.secrets) == [".aws", ".env", "id_rsa", "sub/server.pem"]
    assert not [place for place in upload.files if ".git" in place or "outside" in place or "__pycache__" in place]
    assert upload.size < 5_000_000
    assert "tune_dml" in str(upload)


def test_credential_files_of_clouds_and_registries_are_not_uploaded(tmp_path):
    names = ("application_default_credentials.json", "my-service-account.json", "kaggle.json", "secrets.yaml")
    names += (".npmrc", "token", ".netrc", "id_ed25519", "auth_token")
    for name in (*names, "tokens.py", "credential.py", "secretary.json"):
        (tmp_path / name).write_text("x")
    upload = collect_upload([], tmp_path)
    assert sorted(upload.secrets) == sorted(names)
    assert {"tokens.py", "credential.py", "secretary.json"} <= upload.files.keys()


def test_links_to_outside_are_named_and_special_files_skipped(own, tmp_path):
    (tmp_path / "theirs").mkdir()
    for name, target in (("dangling", "nowhere"), ("self", "self"), ("up", ".."), ("theirs", tmp_path / "theirs")):
        (own / name).symlink_to(target)
    (own / "same.py").symlink_to("loss.py")
    os.mkfifo(own / "pipe")
    upload = collect_upload([], own)
    assert upload.skipped_links == ("dangling", "outside", "self", "theirs", "up")
    assert {"same.py", "loss.py"} <= upload.user_files
    assert "pipe" not in upload.files


def test_modules_that_shadow_ours_are_refused(own):
    (own / "search_spaces").mkdir()
    (own / "search_spaces" / "papers.py").write_text("x = 1")
    with pytest.raises(ConfigError, match=r"must not replace this project's .*'search_spaces/papers.py'"):
        collect_upload([], own)
    (own / "search_spaces" / "papers.py").rename(own / "search_spaces" / "theirs.py")
    assert "search_spaces/theirs.py" in collect_upload([], own).files


def test_ignore_files_do_not_hide_named_uploads(own):
    """Ray follows such files: `*.egg-info` hid the user's methods, and `data/` our package of that name."""
    from ray._private.runtime_env.packaging import get_excludes_from_ignore_files

    for place in (".gitignore", "sub/.gitignore"):
        (own / place).write_text("*.egg-info\ndata/\n*.py\n")
    with collect_upload([], own).stage() as folder:
        assert not [each for place in (folder, folder / "sub") for each in get_excludes_from_ignore_files(place, True)]
        assert (folder / "toy.egg-info" / "entry_points.txt").exists()
    (own / "sub" / ".rayignore").write_text("loss.py")
    with pytest.raises(ConfigError, match=r"the whole folder is uploaded.*sub/.rayignore"):
        collect_upload([], own)


def test_an_uploaded_checkout_keeps_its_name(own, tmp_path, monkeypatch):
    """An .egg-info beside the sources, which Python finds first, has PKG-INFO instead of METADATA."""
    info = tmp_path / "checkout" / "tune_dml.egg-info"
    info.mkdir(parents=True)
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tune-dml\nVersion: 0.0.7\n")
    (info / "entry_points.txt").write_text("[tune_dml.space_packages]\npapers = search_spaces\n")
    monkeypatch.syspath_prepend(info.parent)
    with collect_upload([], own).stage() as folder:
        (staged,) = importlib.metadata.distributions(name="tune-dml", path=[str(folder)])
        assert (staged.name, staged.version) == ("tune-dml", "0.0.7")
        assert [entry.name for entry in staged.entry_points] == ["papers"]


def test_a_package_of_methods_missing_on_the_cluster_is_refused(tmp_path):
    """Its search space was unknown on the cluster without a reason: a `src` layout, or never installed."""
    package = tmp_path / "own"
    (package / "src" / "mine").mkdir(parents=True)
    (package / "src" / "mine" / "loss.py").touch()
    (package / "pyproject.toml").write_text('[project]\nname = "mine"\n[project.scripts]\nx = "mine:x"\n')
    assert "src/mine/loss.py" in collect_upload([], package).user_files
    (package / "pyproject.toml").write_text('[project.entry-points."tune_dml.losses"]\nmine = "mine.loss:Mine"\n')
    with pytest.raises(ConfigError, match=r"needs an \.egg-info at its top.*pip install -e"):
        collect_upload([], package)
    (package / "src" / "mine.egg-info").mkdir()
    (package / "src" / "mine.egg-info" / "entry_points.txt").write_text("[tune_dml.losses]")
    with pytest.raises(ConfigError, match=rf"Name {package}/src\."):
        collect_upload([], package)
    assert "mine/loss.py" in collect_upload([], package / "src").user_files


def test_an_upload_larger_than_rays_limit_is_refused(own, monkeypatch):
    monkeypatch.setattr(upload, "_LIMIT", 1000)
    with pytest.raises(ConfigError, match="The largest file is"):
        collect_upload([], own)


@pytest.mark.parametrize("where", ["~", "/", "/tmp", "~/.."])  # noqa: S108
def test_unsafe_folders_are_refused(where, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "users" / "me"))
    (tmp_path / "users" / "me").mkdir(parents=True)
    with pytest.raises(ConfigError, match="--working-dir"):
        collect_upload([], Path(where).expanduser())


def test_a_world_writable_folder_is_refused(own):
    own.chmod(0o777)
    with pytest.raises(ConfigError, match="writable by everybody"):
        collect_upload([], own)


def test_one_job_runs_per_sweep_name():
    upload = Upload({})
    fresh = Client()
    assert jobs.submit(fresh, "cluster.yaml", "a", ["version"], upload) == (jobs.RayJob("a@1", "a", "PENDING"), True)
    running = Client(("a@1", "RUNNING"))
    assert jobs.submit(running, "cluster.yaml", "a", ["version"], upload) == (jobs.RayJob("a@1", "a", "RUNNING"), False)
    over = Client(("a@1", "STOPPED"))
    job, new = jobs.submit(over, "cluster.yaml", "a", ["version"], upload)
    assert (job.id, new, over.taken) == ("a@2", True, ["a@2"])
    assert over.environment["TUNE_DML_SUBMITTED_TO"] == "cluster.yaml"


def test_another_command_for_a_running_sweep_is_refused(tmp_path):
    client, words = Client(), ["sweep", "mine.yaml", "--name", "a"]

    def send(text, *words):
        (tmp_path / "mine.yaml").write_text(text)
        return jobs.submit(client, "c.yaml --working-dir own", "a", words, collect_upload([Path("mine.yaml")]))

    assert send("one", *words)[1]
    assert not send("one", *words)[1]
    assert not send("two", "resume", "a")[1]
    refused = r"a@1 runs already, with another command or other files; .* `tune-dml cancel c.yaml a`; another sweep"
    for text, others in (("two", words), ("one", [*words, "--seeds", "5"]), ("one", ["extend", "a", "--seeds", "5"])):
        with pytest.raises(ConfigError, match=refused):
            send(text, *others)
    assert client.taken == ["a@1"]


@pytest.mark.parametrize(
    ("status", "said", "goes_on"),
    [
        ("STOPPED", "1\nInterrupted. Continue with: tune-dml submit c -- resume a\n", "tune-dml submit c -- resume a"),
        ("STOPPED", "", "tune-dml submit c.yaml -- sweep mine.yaml --name a"),
        ("FAILED", "no such thing", None),
    ],
)
def test_a_job_stopped_before_any_output_continues_with_its_first_command(status, said, goes_on):
    details = Details(
        entrypoint="python -m tune_dml.cli sweep mine.yaml --name a",
        runtime_env={"env_vars": {"TUNE_DML_SUBMITTED_TO": "c.yaml"}},
    )
    client = Details(get_job_logs=lambda name: said, get_job_info=lambda name: details)
    assert jobs.continue_command(client, jobs.RayJob("a@1", "a", status)) == goes_on


def test_errors_of_a_dashboard_are_one_line(monkeypatch):
    from ray.util.state.exception import ServerUnavailable

    monkeypatch.setattr(jobs, "_dashboard_of", lambda address: "http://127.0.0.1:1")
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: None)
    told = RuntimeError("Request failed with status code 500: Traceback\n  File ...\nRpcError: Deadline Exceeded.")
    for error in (told, ServerUnavailable("no answer")):
        with pytest.raises(ConfigError, match="the cluster's head must answer"), jobs.cluster_client("h:1"):
            raise error
    for ours in (RuntimeError("ours"), BrokenPipeError(32, "Broken pipe")):  # `logs --follow | head -1`
        with pytest.raises(type(ours)), jobs.cluster_client("h:1"):
            raise ours


def test_closing_the_log_stream_closes_the_connection():
    left = []

    class Growing:
        async def tail_job_logs(self, name):
            try:
                yield "a"
                yield "b"
            finally:
                left.append(name)

    parts = jobs.follow(Growing(), jobs.RayJob("a@1", "a", "RUNNING"))
    assert next(parts) == "a"
    parts.close()
    assert left == ["a@1"]
    assert list(jobs.follow(Growing(), jobs.RayJob("a@1", "a", "RUNNING"))) == ["a", "b"]


def test_a_failed_job_has_a_reason():
    assert str(jobs.RayJob("a@1", "a", "STOPPED", "Job was intentionally stopped.")) == "a@1: stopped"
    told = "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\nwords"
    failed = jobs.RayJob("a@1", "a", "FAILED", told)
    assert str(failed) == "a@1: failed (Job entrypoint command failed with exit code 1)"
    for code, told in ((3, "finished, with trials that failed"), (130, "interrupted, resumable")):
        message = f"Job entrypoint command failed with exit code {code}, last available logs"
        assert str(jobs.RayJob("a@1", "a", "FAILED", message)) == f"a@1: {told}"
    assert str(jobs.RayJob("a@1", "a", "FAILED", "runtime_env\nfailed")) == "a@1: failed (runtime_env failed)"


@pytest.mark.parametrize(("status", "goes_on"), [("SUCCEEDED", False), ("FAILED", False), ("STOPPED", True)])
def test_cancel_suggests_resume_only_for_a_stopped_job(monkeypatch, capsys, status, goes_on):
    monkeypatch.setattr(jobs, "cluster_client", lambda target: nullcontext())
    monkeypatch.setattr(jobs, "latest_job", lambda client, sweep, target: jobs.RayJob("a@1", "a", status))
    monkeypatch.setattr(jobs, "continue_command", lambda client, job: "the command" if status == "STOPPED" else None)
    cancel(target="c.yaml", sweep_name="a", as_json=False)
    said = capsys.readouterr().out
    assert said.startswith(f"a@1: {status.lower()}")
    assert ("resume: the command" in said) == goes_on
    assert ("why: tune-dml logs c.yaml a" in said) == (status == "FAILED")


def test_concurrent_submissions_return_the_same_job():
    client = Client(("a@1", "PENDING"))
    first_list = iter([[]])
    client.list_jobs = lambda: next(first_list, None) or Client.list_jobs(client)
    expected = (jobs.RayJob("a@1", "a", "PENDING"), False)
    assert jobs.submit(client, "cluster.yaml", "a", ["version"], Upload({})) == expected


def test_a_submitted_command_is_parsed_and_named():
    command = read_command(["sweep", "sec_rho", "--dataset", "cub200", "--storage", "/mnt/shared"])
    assert command.sweep == "sec_rho-cub200"
    assert command.words[-2:] == ("--name", "sec_rho-cub200")
    capacity = {"CPU": 8.0, "GPU": 4.0}
    assert "Ceiling: none was set" in command.ceiling(capacity)
    timed = read_command([*command.words, "--time-budget", "7200"])
    assert timed.ceiling(capacity).startswith("Ceiling: 8.00 GPU-hours: 4 GPUs for 2 h")
    paid = read_command([*command.words, "--gpu-hours", "12"])
    assert paid.ceiling(capacity) == "Ceiling: 12 GPU-hours. Then it stops, resumable."
    one = read_command([*command.words, "--gpu-hours", "1"])
    assert one.ceiling(capacity) == "Ceiling: 1 GPU-hour. Then it stops, resumable."
    on_cpus = read_command([*command.words, "--time-budget", "9", "--gpus-per-worker", "0", "--cpus-per-worker", "2"])
    assert on_cpus.ceiling({"CPU": 4.0, "GPU": 4.0}).startswith("Ceiling: 0.0050 worker-hours: 2 workers for 9 s")
    empty = {"CPU": 0.0, "GPU": 0.0}  # it grows as trials come: nothing now is no ceiling
    assert "which has no worker yet, may grow" in command.ceiling(empty)
    assert timed.ceiling(empty).startswith("Ceiling: 2 h 00 min on all nodes that the cluster will add")
    assert paid.ceiling(empty).startswith("Ceiling: 12 GPU-hours, or worker-hours where no GPU comes.")


def test_the_files_of_arms_to_add_are_uploaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("more.yaml").touch()
    words = ["extend", "rho1", "--storage", "/s", "--arm", "ours", "--arm"]
    assert read_command([*words, "more.yaml"]).files == [Path("more.yaml")]
    with pytest.raises(ConfigError, match=r"--arm: no such sweep file, but got 'none\.yaml'"):
        read_command([*words, "none.yaml"])


def test_suggested_commands_have_the_flags_of_the_submitted_one_and_its_working_dir():
    words = ["sweep", "sec_rho", "--storage", "/s", "--cache-dir", "/my cache", "--max-concurrent", "4", "--seeds", "2"]
    lines = _commands_for(read_command(words), "c.yaml", "c.yaml")
    again = "  resume: tune-dml submit c.yaml -- resume sec_rho --storage /s --max-concurrent 4 --cache-dir '/my cache'"
    assert [line for line in lines if "resume:" in line] == [again]
    lines = _commands_for(read_command(words[:4]), "c.yaml", "c.yaml --working-dir own")
    assert "  report: tune-dml submit c.yaml --working-dir own -- report sec_rho --storage /s" in lines
    assert "  stop:   tune-dml cancel c.yaml sec_rho" in lines


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("sweep mine.yaml", "told"),
        ("sweep mine.yaml --name other", "other"),
        ("sweep sec_rho --dataset glyphs", "sec_rho"),
        ("sweep sec_rho --vary split", "sec_rho-split"),
        ("resume x", "x"),
    ],
)
def test_a_submitted_sweep_has_its_usual_name(words, name):
    Path("mine.yaml").write_text("name: told\nparameters: {loss.margin: {values: [0.1, 0.2]}}\ndataset: digits\n")
    assert read_command([*words.split(), "--storage", "/s"]).sweep == name


def test_json_of_submit_is_passed_to_reading_verbs():
    asked = read_command(["list", "--storage", "/s"])
    assert asked.in_json().words == ("list", "--storage", "/s", "--json")
    told = read_command(["list", "--storage", "/s", "--json"])
    assert told.in_json() == told


def test_a_space_of_uploaded_modules_needs_a_name():
    words = ["sweep", "theirs", "--storage", "/s"]
    with pytest.raises(ConfigError, match="--name: a sweep whose space is declared in uploaded modules"):
        read_command(words, has_all_modules=False)
    assert read_command([*words, "--name", "a"], has_all_modules=False).sweep == "a"


def test_an_answer_is_the_output_of_the_command(monkeypatch):
    job = jobs.RayJob("status-1", "", "PENDING")
    said = ["INFO Setting up.\nRunning entry", "point for job status-1: python -m x --json\n", '{"a"', ": 1}"]
    monkeypatch.setattr(jobs, "follow", lambda client, job: iter(said))
    assert "".join(jobs.command_output(None, job)) == '{"a": 1}'
    said[1:] = ["the environment could not be made"]
    assert "".join(jobs.command_output(None, job)) == "".join(said)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("sweep sec_rho --storage /s --trial-files s3://me:secret@b/c", r"not contain credentials.* 's3://\*\*\*@b/c'"),
        ("report x --storage /s --tracking-uri http://me:secret@h", "must not contain credentials"),
        ("sweep sec_rhoo --storage /s", "unknown search space 'sec_rhoo'. Did you mean 'sec_rho'"),
        ("sweep sec_rho --storage /s --name ../x", "a sweep's name must have 1 to 100 letters"),
        ("resume 'a b' --storage /s", "a sweep's name must have 1 to 100 letters"),
        ("train", "must be a verb that can run as a job, but got 'train'. `tune-dml train` runs here. There: sweep, "),
        ("swep sec_rho", "Did you mean 'sweep'"),
        ("tune-dml sweep", "Leave that word out"),
        ("logs a --follow", "`tune-dml logs 'cluster.yaml|ADDRESS' a --follow`"),
        ("sweep sec_rho --storage /s --seeds many", "--seeds: must be a count"),
        ("sweep sec_rho --storage /s --set loss.margin", "--set: must read KEY=VALUE"),
        ("sweep sec_rho", "a folder that every node sees"),
        ("report x --storage /s -o out", "-o: a job's own folder is deleted with it: the report"),
        ("sweep sec_rho --storage /s --data-root pics", "--data-root: .*: pictures must lie in a folder"),
        ("resume x --storage /s --cache-dir c", "--cache-dir: .*: decoded pictures would be lost"),
        ("sweep none.yaml --storage /s", "no such sweep file"),
        ("sweep sec_rho --storage /s --address auto", "the cluster that it was sent to"),
    ],
)
def test_a_verb_that_cannot_run_as_a_job_is_refused(line, rule):
    with pytest.raises(ConfigError, match=rule):
        read_command(shlex.split(line))
