"""Provenance names the code, the machine and the command line, and holds no secret."""

import json
import subprocess
import sys
import time
from collections import UserDict

import pytest
from helpers.packages import write_package

from tune_dml.record.origin import provenance
from tune_dml.record.origin.provenance import _mask_argv, collect

IDENTITY = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")


def git(folder, *words):
    done = subprocess.run(["git", "-C", str(folder), *IDENTITY, *words], check=True, capture_output=True)
    return done.stdout.decode()


@pytest.fixture
def project(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "code.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_clean_project_is_named_by_its_commit(project):
    found = collect()["git"]
    assert found["commit"] == git(project, "rev-parse", "HEAD").strip()
    assert found["branch"] == "main"
    assert not found["dirty"]
    assert "diff" not in found


def test_a_project_whose_status_is_slow_is_not_replaced_by_the_repository_of_the_package(project, monkeypatch):
    run = provenance._run
    monkeypatch.setattr(provenance, "_run", lambda *words: None if "status" in words else run(*words))
    note = "git status failed, or took longer than 2 s"
    assert collect()["git"] == {"commit": git(project, "rev-parse", "HEAD").strip(), "note": note}


def test_for_uncommitted_changes_only_digest_and_size_are_stored(project):
    (project / "code.py").write_text("x = 2\n")
    (project / "new.py").write_text("")
    first = collect()["git"]
    assert first["dirty"]
    assert first["diff_note"] == "2 lines of 1 files"
    assert "x = 2" not in json.dumps(first)
    assert first["untracked"] == ["new.py"]
    (project / "code.py").write_text("x = 3\n")
    assert collect()["git"]["diff_digest"] != first["diff_digest"]


SECRET = "Xk7mQ2wE9rTz4LpV"  # noqa: S105 - of no one
PEM = f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{SECRET}\n-----END RSA PRIVATE KEY-----"
STARTS = (
    *("password=", "--api-key=", "AWS_SECRET_ACCESS_KEY=", "PRIVATE_KEY=", "LICENSE_KEY=", "MLFLOW_TRACKING_TOKEN="),
    *("db_passwd: ", "--token ", "--pass ", "client-key-data: ", "password: >\n  ", "--password 'two words' --secret "),
    *("Authorization: Bearer ", "Cookie: sid=", "Set-Cookie: a=b; sid=", "X-Amz-Signature=", "https://example.org/x?key="),
    *("https://hooks.slack.com/services/T0/B0/", "https://discord.com/api/webhooks/1/"),
    *("machine example.org login me password ", "glpat-", "hf_", "xoxb-1234-", "sk-proj-", "sk_test_", "whsec_"),
    *("xapp-1-A0-", "ya29.", "gsk_", "hvs.", "dop_v1_", "gldt-", "glrt-", "dckr_pat_", "glsa_", "GOCSPX-", "hvb."),
    *("NRAK-", "sntrys_", "docker login -u me -p ", "redis-cli -a ", "wandb login ", "ngrok authtoken "),
    *("setenv DB_PASSWORD ", "configure set aws_secret_access_key ", "keytool -storepass ", "Authorization: Token "),
    'Authorization: Digest username="me", response= ',
)  # fmt: skip
PLANTED = [
    *(f"{start}{SECRET}" for start in STARTS),
    f"API_KEY = '{SECRET}'",
    f'{{"pass": "{SECRET}"}}',
    f'{{"pwd": "{SECRET}"}}',
    f"curl -u user:{SECRET} https://example.org",
    f"curl --user=user:{SECRET} https://example.org",
    f"https://user:{SECRET}@example.org/x",
    f"Authorization: Basic {SECRET}==",
    PEM,
    f"ghp_{SECRET}{SECRET}",
    f"ASIA{SECRET.upper()}",
    f"AKIA{SECRET.upper()}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0{SECRET}.{SECRET}",
    f'secret = "with blanks {SECRET}"',
    f'os.environ["SECRET"] = "{SECRET}"',
    f"sshpass -p {SECRET} ssh example.org",
    f"mysql -u me -p{SECRET} results",
    f"AccountName=x;AccountKey={SECRET}==;EndpointSuffix=core.windows.net",
    f"Endpoint=sb://x/;SharedAccessKey={SECRET}=",
    f"https://x.blob.core.windows.net/c?sv=2020&sig={SECRET}%3D",
    f'{{"auths": {{"x": {{"auth": "{SECRET}"}}}}}}',
    f"-H 'X-Auth: {SECRET}'",
    f"123456789:AA{SECRET}{SECRET}",
    PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"),
    f"http://user:{SECRET}@host:5000/api",
    f"postgresql://user:{SECRET}@host/db",
    f"mysql://user:hun/ter@{SECRET}@host/db",
    f"https://{SECRET}@host",
    f'{{"api_key": "{SECRET}"}}',
    rf"{{\"api_key\": \"{SECRET}\"}}",
    *(f"password = {prefix}'{SECRET}'" for prefix in ("b", "f", "(\n    ", "\\\n    ", "r")),
    *(f"{name} '{SECRET}'" for name in ("password: str =", "password: str | None =", "'password' =>", "password :=")),
    *(f"{call}, '{SECRET}')" for call in ("setenv('HF_TOKEN'", "auth=('me'", "HTTPBasicAuth('me'", "smtp.login('me'")),
    f"<password>{SECRET}</password>",
    f'{{"name": "DB_PASSWORD", "value": "{SECRET}"}}',
    f"add_argument('--password', default='{SECRET}')",
    f"bot123456789:AA{SECRET}{SECRET}",
]


@pytest.mark.parametrize("text", PLANTED, ids=range(len(PLANTED)))
def test_no_kind_of_secret_passes_the_mask(text):
    shown = provenance.mask(f"before {text} after")
    assert SECRET not in shown
    assert SECRET.upper() not in shown
    assert shown.startswith("before")
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        *("loss.name=triplet", "compass: north", "--storage /shared/sweeps", "tokens per batch", "--user-agent x:y"),
        *("-u", "loss.tokens=512", "training.pass=2", "tokenizer=bpe", "a basic resnet50-variant", "key=3"),
        *("--tokens 8", "tokens per second"),
        *("sqlite:////home/me@work/mlflow.db", "loss.gamma=0.5", "http://host:5000", "regularizer.eta = 1"),
        *("val/recall_at_1=63.4", "model.key_dim=3"),
        *("columns 'token', 'class'", "{'token', 'label'}", "login as -p", "signature of f(x)=3"),
    ],
)
def test_the_mask_leaves_other_words(text):
    assert provenance.mask(text) == text


def test_secrets_of_the_environment_are_masked_everywhere(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", SECRET)
    for name in ("RAY_AUTH_MODE", "TOKENIZERS_PARALLELISM", "TOKEN_FILE", "DB_PASS"):
        monkeypatch.setenv(name, {"TOKEN_FILE": "/run/secrets/token", "DB_PASS": "short"}.get(name, "a long word"))
    said = f"refused: {SECRET}; a long word, /run/secrets/token, short"
    assert provenance.mask(said) == said.replace(SECRET, "***")


def test_a_variable_that_another_thread_removes_is_skipped(monkeypatch):
    class Shrinking(UserDict):
        def __iter__(self):
            return iter([*super().__iter__(), "GONE"])  # a snapshot, as of os.environ

    monkeypatch.setattr(provenance.os, "environ", Shrinking(MY_TOKEN=SECRET))
    assert provenance.mask(SECRET) == "***"


def test_a_command_with_a_secret_is_refused_and_not_repeated():
    (problem,) = provenance.secret_problems(f"python train.py --token {SECRET} --lr {{lr}}")
    assert SECRET not in str(problem)
    assert "envvar" in str(problem)
    assert not provenance.secret_problems("python train.py --token ${envvar:HF_TOKEN} --max-tokens 131072 --lr {lr}")


@pytest.mark.parametrize("text", ["://" * 30_000, "-" * 100_000, "-a" * 50_000, "token " * 20_000, "a" * 100_000])
def test_the_mask_reads_a_long_text_in_seconds(text):
    began = time.monotonic()
    provenance.mask(text)
    assert time.monotonic() - began < 20


def test_outside_git_provenance_states_it(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "package" / "provenance.py"))
    assert collect()["git"] == {"commit": None, "note": "not in a git repository"}


def test_an_installed_package_is_not_confused_with_the_surrounding_project(project, tmp_path_factory, monkeypatch):
    installed = project / ".venv" / "tune_dml"
    installed.mkdir(parents=True)
    (project / ".gitignore").write_text(".venv\n")
    monkeypatch.setattr(provenance, "__file__", str(installed / "provenance.py"))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert collect()["git"]["commit"] is None


def test_provenance_is_json_and_names_the_machine_and_its_gpus(tmp_path, monkeypatch):
    found = json.loads(json.dumps(collect()))
    assert found["packages"]["numpy"]
    assert found["cpu"]["model"]
    assert found["cpu"]["usable"] >= 1
    assert found["memory_bytes"] > 2**20
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 570.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert collect()["gpus"] == [{"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "driver": "570.1"}]


def test_a_package_of_methods_is_identified_by_version_and_source(tmp_path, monkeypatch):
    """Edited code has the same settings and trial keys; only its source distinguishes it."""
    write_package(tmp_path, "mine = own_losses:Mine", own_losses="class Mine: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = collect()["methods"]
    assert before["own-dml"].startswith("1.0, source ")
    assert collect()["methods"] == before
    (tmp_path / "own_losses.py").write_text("class Mine: ...  # edited\n")
    assert collect()["methods"]["own-dml"] != before["own-dml"]
    assert "own_losses" not in sys.modules
    (metadata,) = tmp_path.glob("*/PKG-INFO")
    metadata.write_text("")  # sessions could not start beside such a package
    assert None not in collect()["methods"]


def test_the_environment_is_an_allow_list_and_values_after_secret_flags_are_masked():
    environment = {"MLFLOW_TRACKING_URI": "http://me:pw@h:1", "OMP_NUM_THREADS": "1", "MY_TOKEN": "t", "HOME": "/"}
    found = collect(environment=environment)["environment"]
    assert found == {"MLFLOW_TRACKING_URI": "http://***@h:1", "OMP_NUM_THREADS": "1"}
    argv = ["tune-dml", "sweep", "--api-key", "hunter2", "--set", "loss.k=1"]
    assert _mask_argv(argv) == ["tune-dml", "sweep", "--api-key", "***", "--set", "loss.k=1"]


def test_a_command_line_that_was_read_in_another_locale_is_kept_as_text():
    """Under LC_ALL=C without UTF-8 mode, or of a file named in Latin-1: MLflow and the report could not be written again."""
    as_read = [
        b"gr\xc3\xb6\xc3\x9fe.yaml".decode("ascii", "surrogateescape"),
        b"gr\xf6\xdfe".decode("utf-8", "surrogateescape"),
    ]
    assert _mask_argv(as_read) == ["größe.yaml", "gr\ufffd\ufffde"]
