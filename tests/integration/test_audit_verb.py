"""An audit of a run with a planted setting: two sweeps, a page, and nothing left for a second call."""

import json

import pytest


@pytest.fixture
def config(tmp_path, new_database):
    new_database(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "{data.name: digits, training: {steps: 10, eval_every: 10}, model.embedding_dim: 2, optim: {beta2: 0.99, eps: 1.0e-7}}"
    )
    return "run.yaml"


@pytest.mark.slow
def test_an_audit_names_the_planted_setting(config, command_line, cache_dir, ray_session, tmp_path):
    words = ("audit", config, "--against", "digits/quick", "--max-concurrent", "1", "--cache-dir", cache_dir)
    code, out, _ = command_line(*words, "--plan", "--json")
    planned = json.loads(out)
    assert (code, planned["trials"]) == (0, 36)
    assert [row["name"] for row in planned["settings"]].count("model.embedding_dim") == 1
    code, out, err = command_line(*words, "--json")
    found = json.loads(out)
    assert code == 0, err
    assert "model.embedding_dim" in found["named"]
    effect = next(row for row in found["settings"] if row["name"] == "model.embedding_dim")
    assert effect["high"] < -5
    assert "model.embedding_dim" in found["answer"][0]
    assert found["trials"] == 36
    page = (tmp_path / "sweeps" / "audit-run" / "audit" / "audit.html").read_text()
    assert found["answer"][0].split(":")[0] in page
    ledgers = [tmp_path / "sweeps" / name / "ledger.jsonl" for name in found["sweeps"]]
    ended = [file.read_text().count('"ended"') for file in ledgers]
    assert ended == [24, 12]
    again = json.loads(command_line(*words, "--json")[1])
    assert again["settings"] == found["settings"]
    assert [file.read_text().count('"ended"') for file in ledgers] == ended
