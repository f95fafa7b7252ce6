"""Files of a trial in a folder and in a bucket, with one contract: refusals are reported once, outages waited for."""

import io
import zipfile

import pytest
import torch

from trainables import files as patience
from trainables.bucket import Address, BucketFiles, bucket_problems
from trainables.context import TrialContext
from trainables.errors import ConfigError
from trainables.files import write_whole
from trainables.trial_files import files_at

CHECKPOINTS = ("checkpoint.pt", "checkpoint.2.pt")


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    return tmp_path / "trial" if request.param == "folder" else request.getfixturevalue("store").address


@pytest.fixture
def context(place):
    said = []
    context = TrialContext(place, torch.device("cpu"), say=said.append)
    context.said, context.files = said, files_at(place)
    return context


def test_text_with_an_undecodable_path_is_written(tmp_path):
    write_whole(tmp_path / "report.html", b"a gr\xf6\xdfe".decode(errors="surrogateescape"))
    assert (tmp_path / "report.html").read_text() == "a gr\\udcf6\\udcdfe"


class TestTheContract:
    def test_stored_files_are_read_and_listed_until_deleted(self, place):
        files = files_at(place)
        assert files.names() == []
        assert files.get("a.json") is None
        files.put("evidence/sheet.jpg", b"\xff\x00", private=True)
        files.put("a.json", b"1")
        files.put("a.json", b"22")
        assert files.names() == ["a.json", "evidence/sheet.jpg"]
        assert files.get("a.json") == b"22"
        assert files.get("evidence/sheet.jpg") == b"\xff\x00"
        files.delete("a.json")
        files.delete("a.json")
        assert files.names() == ["evidence/sheet.jpg"]
        assert files_at(place).get("a.json") is None

    def test_a_new_process_replaces_the_checkpoints_of_an_older_one(self, context, place):
        for step in (1, 2):
            context.report({"step": step}, {"step": step})
        other = TrialContext(place, torch.device("cpu"))
        assert other.latest_checkpoint()["step"] == 2
        other.report({"step": 3}, {"step": 3})
        steps = [_state(context.files.get(name))["step"] for name in CHECKPOINTS]
        assert sorted(steps) == [2, 3]

    @pytest.mark.parametrize("spoil", ["half", "empty", "zeros", "one bit", "method"])
    def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(self, context, spoil):
        for step in (1, 2, 3):
            context.report({"step": step}, {"step": step, "weights": torch.full((1000,), float(step))})
        last = next(name for name in CHECKPOINTS if _state(context.files.get(name))["step"] == 3)
        context.files.put(last, _spoilt(context.files.get(last), spoil))
        assert context.latest_checkpoint()["step"] == 2
        assert len(context.said) == 1
        assert f"{last} cannot be read" in context.said[0]
        context.report({"step": 3}, {"step": 3})  # in place of the damaged one
        assert context.latest_checkpoint()["step"] == 3
        for name in CHECKPOINTS:
            context.files.put(name, b"nothing")
        assert context.latest_checkpoint() is None

    def test_nothing_that_a_checkpoint_contains_is_executed(self, context, tmp_path, capsys):
        torch.save({"step": Evil()}, tmp_path / "evil.pt")
        context.files.put(CHECKPOINTS[0], (tmp_path / "evil.pt").read_bytes())
        assert context.latest_checkpoint() is None
        assert "it holds code" in context.said[0]
        assert "weights_only" not in context.said[0]
        assert "executed" not in capsys.readouterr().out

    def test_a_file_that_is_no_checkpoint_is_skipped(self, context, tmp_path):
        context.report({"step": 1}, {"step": 1})
        torch.save([1.0, 2.0], tmp_path / "list.pt")
        with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
            archive.writestr("readme.txt", "no checkpoint")
        for name in ("list.pt", "other.zip"):
            context.files.put(CHECKPOINTS[1], (tmp_path / name).read_bytes())
            assert context.latest_checkpoint()["step"] == 1
        assert all("not a checkpoint of ours" in said for said in context.said)
        assert len(context.said) == 2

    def test_new_files_of_a_trial_replace_old_ones_and_only_rank_0_writes(self, context, place):
        other = TrialContext(place, torch.device("cpu"), rank=1)
        for each in (context, other):
            each.seal({"test/recall_at_1": 12.5 + each.rank})
            each.store("network.pt2", b"weights")
            each.replace_evidence({"a": b"1", "b": b"2"})
            each.replace_evidence({"b": bytes([each.rank])})
            each.report({"step": 1}, {"step": 1 + each.rank})
        assert context.files.names() == ["checkpoint.pt", "evidence/b", "network.pt2", "sealed.json"]
        assert context.files.get("sealed.json") == b'{"test/recall_at_1": 12.5}\n'
        assert context.files.get("evidence/b") == b"\0"


class Evil:
    """An object whose pickle calls a function."""

    def __reduce__(self):
        return print, ("executed",)


def _state(content):
    return torch.load(io.BytesIO(content), weights_only=True)


def _spoilt(content, how):
    if how == "one bit":  # in the middle of the weights, where torch would not notice
        at = len(content) // 2
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    if how == "method":  # one bit of the directory says that parts are compressed
        at = content.index(b"PK\1\2") + 10
        return content[:at] + b"\x08" + content[at + 1 :]
    return {"half": content[: len(content) // 2], "empty": b"", "zeros": b"\0" * len(content)}[how]


def test_writing_waits_for_a_folder_that_disappears(tmp_path, monkeypatch):
    trials, away, said = tmp_path / "trials", tmp_path / "away", []
    context = TrialContext(trials / "one", torch.device("cpu"), say=said.append)
    monkeypatch.setattr(patience.os, "fsync", lambda file: away.exists() or trials.rename(away))
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: away.rename(trials) and away.mkdir())
    context.store("hits_val.npz", b"whole")
    assert files_at(trials / "one").get("hits_val.npz") == b"whole"
    assert ["the folder is gone" in text for text in said] == [True, False]


class TestABucket:
    def test_requests_and_bytes_of_each_verb(self, store):
        """Requests are billed; this test notices a change in pyarrow."""
        files = BucketFiles(store.address)

        def asked(act):
            store.requests.clear()
            act()
            return [verb for verb, _, _ in store.requests]

        assert asked(lambda: files.put("checkpoint.pt", b"1" * 9_000_000)) == ["PUT"]
        assert asked(lambda: files.get("checkpoint.pt")) == ["HEAD", "GET"]
        assert asked(lambda: files.get("nothing")) == ["HEAD"]
        assert asked(files.names) == ["GET"]
        assert asked(lambda: files.put("large", b"1" * 21_000_000)) == ["POST", "PUT", "PUT", "PUT", "POST"]
        assert asked(files.clear) == ["HEAD", "GET", "POST", "DELETE", "PUT"]
        assert store.objects() == {}

    @pytest.mark.slow
    def test_an_outage_is_reported_once_and_does_not_count_as_stalled(self, store, monkeypatch):
        said, signs = [], []
        address = store.address
        context = TrialContext(address, torch.device("cpu"), say=said.append, at_work=lambda: signs.append(1))
        context.report({"step": 1}, {"step": 1})
        store.stop()
        pauses = []

        def pause(seconds):
            pauses.append(seconds)
            if len(pauses) == 2:
                store.start()

        monkeypatch.setattr(patience.time, "sleep", pause)
        context.report({"step": 2}, {"step": 2})
        assert len(pauses) == len(signs) == 2
        assert ["object storage fails" in text for text in said] == [True, False]
        assert "waiting up to 10 minutes" in said[0]
        assert context.latest_checkpoint()["step"] == 2

    def test_the_endpoint_of_the_environment_is_part_of_the_address_and_a_probe_leaves_no_file(
        self, store, monkeypatch
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        place = Address.read(f"s3://{store.bucket}/x/")
        host = store.endpoint.removeprefix("http://")
        assert str(place) == f"s3://{store.bucket}/x?endpoint_override={host}&scheme=http"
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        assert Address.read(str(place)) == place
        assert str((place / "y").parent) == str(place)
        assert bucket_problems(str(place)) == []
        assert [name for name in store.objects() if not name.endswith("/")] == []

    @pytest.mark.parametrize(
        ("answer", "rule", "remedy"),
        [
            (("403 Forbidden", "AccessDenied"), "access must allow", "s3:PutObject"),
            (("403 Forbidden", "InvalidAccessKeyId"), "credentials must be right", "AWS_ACCESS_KEY_ID"),
            (("403 Forbidden", "SignatureDoesNotMatch"), "credentials must be right", "AWS_PROFILE"),
            (("404 Not Found", "NoSuchBucket"), "bucket must exist", "Create it"),
            (("301 Moved Permanently", "PermanentRedirect"), "region", "?region=REGION"),
            (("400 Bad Request", "ExpiredToken"), "store must answer", "Renew the credentials"),
            (("403 Forbidden", "RequestTimeTooSkewed"), "store must answer", "clock"),
        ],
    )
    def test_a_refusal_of_a_store_is_one_problem(self, store, answer, rule, remedy):
        store.answer = answer
        (problem,) = bucket_problems(store.address)
        assert problem.place == "trial_files"
        assert rule in problem.rule
        assert store.bucket in str(problem)
        assert remedy in problem.remedy

    def test_a_trial_does_not_wait_after_a_refusal_of_the_store(self, store):
        context = TrialContext(store.address, torch.device("cpu"))
        store.answer = ("403 Forbidden", "AccessDenied")
        with pytest.raises(ConfigError, match="access must allow"):
            context.seal({})

    def test_an_unreachable_store_is_one_problem_at_once(self, store):
        store.stop()
        (problem,) = bucket_problems(store.address)
        store.start()
        assert "the store must answer" in problem.rule


def test_a_rank_without_process_group_writes_nothing(tmp_path):
    """Its exchanges return only its own data: half a batch, an evaluation of half the pictures."""
    rows = []
    context = TrialContext(tmp_path / "trial", torch.device("cpu"), world_size=2, sink=rows.append)
    for act in (
        context.heartbeat,
        lambda: context.report({"step": 1}, {"step": 1}),
        lambda: context.seal({"test/recall_at_1": 1.0}),
        lambda: context.replace_evidence({"a": b"1"}),
    ):
        with pytest.raises(ConnectionError, match="process group of this trial's ranks is gone"):
            act()
    assert not rows
    assert not list((tmp_path / "trial").rglob("*.*"))


def test_a_trial_reports_its_resumed_checkpoint(tmp_path):
    told = []

    def context(rank=0):
        return TrialContext(tmp_path / "trial", torch.device("cpu"), rank=rank, on_resume=told.append)

    first = context()
    assert first.latest_checkpoint() is None
    first.report({"step": 20}, {"step": 20})
    first.report({"step": 40}, {"step": 40})
    assert told == []
    context().latest_checkpoint()
    context(rank=1).latest_checkpoint()
    assert told == [40]
