"""Results of other programs are read as written, or refused with rule, value, place and remedy."""

import json
import math
from pathlib import Path

import pytest

from trainables.errors import ConfigError
from tune_dml.record.imported import ImportRequest, read_csv, read_optuna, read_ray, results_of_rows
from tune_dml.report import summary, write_report
from tune_dml.report.analysis import analyse

ASKED = ImportRequest("runs", metric="acc", margin=0.01)


def results(found, asked=ASKED):
    return results_of_rows(found, asked, Path("elsewhere/runs"))


def table(folder, text):
    path = folder / "runs.csv"
    path.write_text(text)
    return path


def numbers(seeds=3, header="lr,seed,acc"):
    lines = [f"{lr},{seed},{0.9 - lr + 0.01 * seed + 0.001 * ((7 * seed) % 3)}" for seed in range(seeds)
             for lr in (0.001, 0.1, 0.3)]  # fmt: skip
    return "\n".join([header, *lines]) + "\n"


def test_a_table_becomes_cells_and_seeds(tmp_path):
    found = results(read_csv(table(tmp_path, numbers()), ASKED))
    assert [cell.label for cell in found.cells] == ["lr=0.001", "lr=0.1", "lr=0.3"]
    assert found.plan.seeds == (0, 1, 2)
    assert found.trials[0].metrics == {"acc": pytest.approx(0.899)}
    assert found.plan.search.method == "grid"
    assert "lr matters" in summary(found).verdicts[0]


def test_semicolons_a_byte_order_mark_and_line_breaks_within_a_field_are_read(tmp_path):
    text = '\ufefflr;note;acc\n0.1;"two\nlines";0.5\n0.2;"a;b";0.6\r\n0.3;form\x0cfeed\x85of\u2028lines;0.7\n'
    found = read_csv(table(tmp_path, text), ASKED)
    assert [row.settings["note"] for row in found.rows] == ["two lines", "a;b", "form feed of lines"]


def test_the_index_that_pandas_writes_is_no_setting(tmp_path):
    found = read_csv(table(tmp_path, ",lr,acc\n0,0.1,0.5\n1,0.2,0.6\n"), ASKED)
    assert [row.settings for row in found.rows] == [{"lr": 0.1}, {"lr": 0.2}]
    assert "The first column has no name" in found.notes[0]
    with pytest.raises(ConfigError, match="every column needs a name, but got 'column 2'"):
        read_csv(table(tmp_path, "lr,,acc\n0.1,1,0.5\n"), ASKED)


def test_seeds_of_64_bits_stay_apart_and_infinity_has_several_spellings(tmp_path):
    rows = "1,9007199254740993,0.5\n1,9007199254740992,-Infinity\n1,3,1e999\n"
    found = read_csv(table(tmp_path, "lr,seed,acc\n" + rows), ASKED)
    assert [row.settings["seed"] for row in found.rows] == [9007199254740993, 9007199254740992, 3]
    assert [row.metrics for row in found.rows] == [{"acc": 0.5}, {}, {}]


def test_without_a_seed_column_repeats_are_numbered_with_a_note(tmp_path):
    found = results(read_csv(table(tmp_path, "lr,acc\n1,0.5\n2,0.6\n1,0.51\n2,0.61\n"), ASKED))
    assert [trial.seed for trial in found.trials] == [0, 0, 1, 1]
    assert any("paired by chance" in note for note in found.notes)


def test_configurations_that_share_no_seed_are_paired_by_chance(tmp_path):
    noise = iter([0.1, 0.5, 0.9, 0.2, 0.7, 0.4] * 3)
    cells = [(lr, aug) for lr in (1, 2, 3) for aug in ("no", "yes")] * 3
    rows = [f"{lr},{aug},{17 * i},{next(noise) + 0.01 * (i % 4)}" for i, (lr, aug) in enumerate(cells)]
    found = results(read_csv(table(tmp_path, "\n".join(["lr,aug,seed,acc", *rows])), ASKED))
    assert len(found.plan.seeds) == 3
    assert any("6 groups that share no seed" in note for note in found.notes)
    assert "The best configuration found is lr=2, aug=no: acc" in " ".join(summary(found).verdicts)
    kept = results_of_rows(read_csv(tmp_path / "runs.csv", ASKED), ASKED, Path("elsewhere"), keeps_seeds=True)
    assert len(kept.plan.seeds) == 18
    assert "interact" not in " ".join(summary(kept).verdicts).replace("whether lr and aug interact", "")


def test_the_larger_group_keeps_its_seeds(tmp_path):
    rows = ["1,7,0.1", "1,8,0.2", "2,7,0.3", "3,9,0.4", "3,9.5,0.5"]
    found = results(read_csv(table(tmp_path, "\n".join(["lr,seed,acc", *rows])), ASKED))
    assert [trial.seed for trial in found.trials] == [7, 8, 7, 7, 8]
    single = results(read_csv(table(tmp_path, "lr,seed,acc\n1,3,0.1\n2,5,0.3\n3,4,0.2\n"), ASKED))
    assert {trial.seed for trial in single.trials} == {3}
    assert "The best value" not in " ".join(summary(single).verdicts)


def test_single_trainings_have_values_without_intervals(tmp_path):
    found = results(read_csv(table(tmp_path, "lr,acc\n1,0.5\n2,0.6\n3,0.4\n"), ASKED))
    assert any("the noise is unknown" in note for note in found.notes)
    assert "one seed" in summary(found).verdicts[0]


def test_of_two_knobs_each_difference_is_averaged_over_the_other(tmp_path):
    means = {(lr, net): i * i for i, (lr, net) in enumerate((lr, net) for lr in (1, 2, 3) for net in ("a", "b"))}
    lines = [f"{lr},{net},{seed},{mean + 0.1 * seed}" for (lr, net), mean in means.items() for seed in range(3)]
    found = results(read_csv(table(tmp_path, "\n".join(["lr,net,seed,acc", *lines])), ASKED))
    lr, net = analyse(found).knobs
    assert lr.isolated.means == pytest.approx({"lr=1": 0.6, "lr=2": 6.6, "lr=3": 20.6})
    assert net.isolated.means == pytest.approx({"net=a": 20 / 3 + 0.1, "net=b": 35 / 3 + 0.1})


def test_seeds_that_train_different_halves_of_a_grid_are_counted(tmp_path):
    """Each seed has one setting of `aug` at each rate, so no seed has both."""
    grid = [(lr, aug, seed) for seed in range(6) for lr in (0.001, 0.1, 0.3) for aug in ("no", "yes")]
    rows = [
        f"{lr},{aug},{seed},{0.9 - lr + 0.01 * seed + 0.001 * ((7 * seed) % 3)}"
        for number, (lr, aug, seed) in enumerate(grid)
        if (number // 2 + (aug == "yes")) % 2
    ]
    data = read_csv(table(tmp_path, "\n".join(["lr,aug,seed,acc", *rows])), ASKED)
    sentences = " ".join(summary(results_of_rows(data, ASKED, Path("elsewhere"), keeps_seeds=True)).verdicts)
    assert "3 values x 6 paired seeds" in sentences
    assert "but seeds that configurations do not share do not show how certain that is" in sentences


def test_an_unknown_search_is_not_tested_for_effects(tmp_path):
    lines = [f"{i},{(7 * i) % 13},{seed},{i + 0.1 * seed}" for i in range(12) for seed in range(2)]
    found = results(read_csv(table(tmp_path, "\n".join(["lr,width,seed,acc", *lines])), ASKED))
    assert all("not tried with the same settings" in knob.sensitivity.reason for knob in analyse(found).knobs)
    assert all(knob.search_effect is None for knob in analyse(found).knobs)


def test_columns_that_may_not_be_settings_are_named(tmp_path):
    lines = [f"{lr},{seed},{lr + seed},{lr * seed + 0.01 * lr}" for lr in (1, 2) for seed in range(4)]
    found = results(read_csv(table(tmp_path, "\n".join(["lr,Seed,acc,val loss", *lines])), ASKED))
    assert found.plan.seeds == (0, 1, 2, 3)
    assert "its own val loss" in found.notes[0]
    assert found.notes[0].endswith("choose the settings: --knob lr")
    chosen = ImportRequest("runs", "acc", margin=0.01, knobs=("lr",))
    assert not any("own" in note for note in results(read_csv(tmp_path / "runs.csv", chosen), chosen).notes)


def test_a_run_without_a_seed_gets_an_unused_seed(tmp_path):
    found = results(read_csv(table(tmp_path, "lr,seed,acc\n1,0,0.5\n1,,0.6\n2,0,0.1\n2,b,0.2\n"), ASKED))
    assert [trial.seed for trial in found.trials] == [0, 1, 0, 2]
    assert "Seeds that are not whole numbers were numbered in order, from 1: none, b." in found.notes


def test_a_table_of_wandb_and_numbers_with_separators(tmp_path):
    text = 'lr,steps,acc,State\n1,"1,000",0.5,finished\n2,"10,000",0.6,crashed\n3,"1,000",0.6,stopped\n'
    found = results(read_csv(table(tmp_path, text), ASKED))
    assert [trial.status for trial in found.trials] == ["finished", "failed", "failed"]
    assert any("Values of steps such as 1,000 are read as names" in note for note in found.notes)
    with pytest.raises(ConfigError, match=r"but got '0,5'\. Write a decimal point") as refused:
        read_csv(table(tmp_path, "lr;acc\n" + "1;0,5\n" * 20), ASKED)
    assert len(refused.value.problems) == 9
    assert "12 more problems" in str(refused.value)


def test_columns_that_wandb_adds_are_no_settings(tmp_path):
    head = "Name,Agent,State,Notes,User,Tags,Created,Runtime,Sweep,ID,Group,lr,seed,_step,_timestamp,acc\n"
    lines = [f"run-{lr}-{seed},,finished,-,me,,2025-11-13T09:48:{lr}{seed}.000Z,{100 * lr + seed},1wfhjnkh,{lr}x{seed},"
             f"g{lr},{lr},{seed},{50 + seed},{1763.5 + lr},{0.5 + 0.1 * lr + 0.01 * seed}" for lr in (1, 2)
             for seed in (0, 1)]  # fmt: skip
    found = results(read_csv(table(tmp_path, head + "\n".join(lines)), ASKED))
    assert [knob.path for knob in found.plan.space.knobs] == ["Group", "lr"]
    assert [trial.seconds for trial in found.trials] == [100, 101, 200, 201]
    assert "The table is W&B's: these columns are its own and no settings: Name, Agent, State, Notes," in found.notes[0]
    chosen = ImportRequest("runs", "acc", margin=0.01, knobs=("ID",))
    named = results(read_csv(tmp_path / "runs.csv", chosen), chosen)
    assert [knob.path for knob in named.plan.space.knobs] == ["ID"]
    own = results(read_csv(table(tmp_path, "Name,ID,lr,acc\na,1,1,0.5\nb,2,2,0.6\n"), ASKED))
    assert [knob.path for knob in own.plan.space.knobs] == ["Name", "ID", "lr"]


def test_settings_that_do_not_vary_are_fixed(tmp_path):
    found = results(read_csv(table(tmp_path, "lr,net,acc\n1,r50,0.5\n2,r50,0.6\n"), ASKED))
    assert [knob.path for knob in found.plan.space.knobs] == ["lr"]
    assert found.plan.base_settings == {"net": "r50"}


def test_a_failed_row_and_an_empty_number_are_failures_with_their_reason(tmp_path):
    text = "lr,acc,status,reason\n1,0.5,,\n2,,failed,out of memory\n3,,,\n"
    found = results(read_csv(table(tmp_path, text), ASKED))
    assert [(trial.status, trial.reason) for trial in found.trials] == [
        ("finished", ""), ("failed", "out of memory"), ("failed", "it has no finite acc")
    ]  # fmt: skip


def test_parquet_and_a_separator_that_excel_states_are_read(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"lr": [0.1, None], "acc": [0.5, math.nan]}), tmp_path / "runs.parquet")
    found = read_csv(tmp_path / "runs.parquet", ASKED)
    assert [(row.settings, row.metrics) for row in found.rows] == [({"lr": 0.1}, {"acc": 0.5}), ({"lr": None}, {})]
    found = read_csv(table(tmp_path, "sep=|\nlr|acc\n0.1|0.5\n0.2|1e200\n"), ASKED)
    assert [(row.settings, row.metrics) for row in found.rows] == [({"lr": 0.1}, {"acc": 0.5}), ({"lr": 0.2}, {})]


@pytest.mark.parametrize(("name", "failed"), [("state", "PRUNED"), ("Status", "KILLED")])
def test_statuses_of_optuna_and_mlflow_are_no_settings(tmp_path, name, failed):
    """Optuna writes a value for a pruned trial, too."""
    found = read_csv(table(tmp_path, f"lr,acc,{name}\n1,0.5,RUNNING\n2,0.6,{failed}\n"), ASKED)
    assert [row.status for row in found.rows] == ["running", "failed"]
    assert [row.settings for row in found.rows] == [{"lr": 1}, {"lr": 2}]
    found = read_csv(table(tmp_path, f"lr,acc,{name}\n1,0.5,Ohio\n2,0.6,Utah\n"), ASKED)
    assert [row.settings[name] for row in found.rows] == ["Ohio", "Utah"]


def test_only_seeds_of_both_values_are_called_paired(tmp_path):
    rows = [f"{lr},{seed},{lr + 0.01 * (seed * seed % 7)}" for lr in (1, 2) for seed in range(3 * lr)]
    found = results(read_csv(table(tmp_path, "\n".join(["lr,seed,acc", *rows])), ASKED))
    assert "2 values x 6 seeds, of which these two share 3)" in summary(found).verdicts[0]


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        ("lr,acc\n1,0.5\n2,0.6\n", ImportRequest("x", margin=0.1), r"--metric: name .* Its columns are lr, acc\."),
        ("lr,acc\n1,0.5\n2,0.6\n", ImportRequest("x", "accc", margin=0.1), r"be a column of .*'accc'\. Did you mean 'acc'\?$"),
        ("lr,acc\n1,0.5\n2,0.6\n", ImportRequest("x", "acc"), r"--margin: name .* of acc .* between 0\.5 and 0\.6"),
        ("lr,acc\n1,0.5,3\n2,0.6\n", ASKED, r"line 2: a line must have as many fields as the header, 2, but got 3"),
        ("lr,lr,acc\n1,1,0.5\n", ASKED, r"a column name may occur only once, but got 'lr'"),
        ("lr,acc\n", ASKED, r"needs a header line and a line for each training"),
        ("# mine\nlr,acc\n1,0.5\n", ASKED, r"line 2: .* The first line must name the columns\."),
        ("lr,seed,acc\n1,,0.5\n1,,0.6\n2,,0.1\n", ASKED, r"line 2 and line 3: .* only once\. Its seed is empty: give"),
        ("lr,acc\n1,high\n2,0.1\n", ASKED, r"line 2: `acc` must be a number, or empty, .*'high'. Correct it, or change"),
        ("lr,acc,status\n1,0.5,great\n2,0.1,\n", ASKED, r"line 2: `status` must be one of .*but got 'great'"),
        ("lr,acc\n1,0.5\n1,0.6\n", ASKED, r"some setting of the file runs\.csv must vary"),
        ("lr,seed,acc\n1,0,0.5\n1,0,0.6\n2,0,0.1\n", ASKED, r"line 2 and line 3: .* only once.* Remove the repeat\.$"),
        ("lr,acc\n1,0.5\n2,0.6\n", ImportRequest("x", "acc", margin=0.1, seed_column="sed"), r"--seed-column: must be a setting"),
        ("lr,acc\n1,0.5\n2,0.6\n", ImportRequest("x", "acc", margin=0.1, knobs=("lrr",)), r"--knob: must be a setting .*'lrr'"),
        ("lr,acc\n1,0.5\n2,0.6\n", ImportRequest("x", "acc", margin=-1), r"margin: .*but got -1"),
    ],
)  # fmt: skip
def test_wrong_input_names_rule_value_place_and_remedy(tmp_path, text, asked, message):
    with pytest.raises(ConfigError, match=message):
        results(read_csv(table(tmp_path, text), asked), asked)


def test_the_page_lists_omitted_questions_and_escapes_markup(tmp_path):
    text = numbers(header="lr,seed,acc").replace("lr,seed", "<script>alert(1)</script>,seed")
    found = results(read_csv(table(tmp_path, text), ASKED))
    files = write_report(found, tmp_path / "report")
    html = files.html.read_text()
    assert "What is unknown" in html
    assert "Intervals assume one look" in html
    assert "95% simultaneous interval" in html  # the whole error of 5 %
    assert "not recorded; one is assumed" in html
    assert "<script>alert" not in html
    assert "trained elsewhere" in html
    assert "tune-dml extend" not in html
    assert json.loads(files.verdicts.read_text())["protocol_version"] == 0


def ray_trial(folder, name, params, rows, error=""):
    trial = folder / name
    trial.mkdir(parents=True)
    (trial / "params.json").write_text(json.dumps(params))
    (trial / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"cut')
    if error:
        (trial / "error.txt").write_text(f"Traceback\n{error}\n")


def test_a_ray_folder_is_read_without_ray(tmp_path):
    for index, lr in enumerate((0.1, 0.2)):
        rows = [{"training_iteration": i, "acc": 0.1 * i, "time_total_s": 2.0 * i, "config": {}} for i in (1, 2, 3)]
        ray_trial(tmp_path / "exp", f"t{index}", {"optim": {"lr": lr}, "seed": 0}, rows)
    ray_trial(tmp_path / "exp", "t2", {"optim": {"lr": 0.3}, "seed": 0}, [], error="RuntimeError: lost")
    found = results(read_ray(tmp_path / "exp", ASKED))
    assert [knob.path for knob in found.plan.space.knobs] == ["optim.lr"]
    assert found.trials[0].metrics == {"acc": pytest.approx(0.3)}
    assert found.trials[0].seconds == 6.0
    assert [row["step"] for row in found.history(found.trials[0].key)] == [1, 2, 3]
    assert found.trials[2].reason == "RuntimeError: lost"
    with pytest.raises(ConfigError, match=r"must hold a folder for each trial, with params\.json"):
        read_ray(tmp_path, ASKED)
    with pytest.raises(ConfigError, match="name the metric of"):
        read_ray(tmp_path / "exp", ImportRequest("x"))


@pytest.mark.parametrize("text", ["[]", "5", "[" * 100_000], ids=["list", "number", "nested"])
def test_ray_trials_without_a_parameter_object_are_refused(tmp_path, text):
    (tmp_path / "run" / "trial").mkdir(parents=True)
    (tmp_path / "run" / "trial" / "params.json").write_text(text)
    with pytest.raises(ConfigError, match="must be a readable JSON object"):
        read_ray(tmp_path / "run", ASKED)


def test_ray_results_of_other_types_are_skipped(tmp_path):
    (tmp_path / "run" / "trial").mkdir(parents=True)
    (tmp_path / "run" / "trial" / "params.json").write_text('{"lr": 1}')
    lines = ['{"acc": 0.5, "training_iteration": "x", "time_total_s": null}', "[" * 100_000]
    (tmp_path / "run" / "trial" / "result.json").write_text("\n".join(lines))
    (row,) = read_ray(tmp_path / "run", ASKED).rows
    assert (row.metrics, row.seconds, row.history[0]["step"]) == ({"acc": 0.5}, 0.0, 1)


def test_an_optuna_study_is_read_with_its_goal(tmp_path):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = f"sqlite:///{tmp_path}/x.db"
    study = optuna.create_study(study_name="odd <name>", storage=storage, direction="minimize")
    for value in (0.1, 0.2, 0.3):
        domain = {"lr": optuna.distributions.FloatDistribution(0, 1)}
        study.add_trial(optuna.trial.create_trial(params={"lr": value}, value=value**2, distributions=domain))
    study.enqueue_trial({"lr": 0.5})
    asked = ImportRequest("study", margin=0.01)
    found = results(read_optuna(storage, None, asked), asked)
    assert found.plan.space.goal == "minimize"
    assert found.plan.metric == "objective"
    assert [trial.status for trial in found.trials].count("finished") == 3
    with pytest.raises(ConfigError, match="must be a study of the storage, but got 'odd'"):
        read_optuna(storage, "odd", asked)
    with pytest.raises(ConfigError, match="the database must exist"):
        read_optuna(f"sqlite:///{tmp_path}/y.db", None, asked)
    assert not (tmp_path / "y.db").exists()


@pytest.mark.slow
def test_an_mlflow_experiment_is_read(tmp_path):
    from mlflow.tracking import MlflowClient

    from tune_dml.tracking.experiments import read_mlflow

    uri = f"sqlite:///{tmp_path}/m.db"
    client = MlflowClient(uri)
    experiment = client.create_experiment("others", (tmp_path / "files").as_uri())
    for seed in (0, 1):
        for lr in (0.1, 0.2):
            run = client.create_run(experiment).info.run_id
            client.log_param(run, "lr", lr)
            client.log_param(run, "seed", seed)
            client.log_metric(run, "acc", 0.5 + lr + 0.01 * seed)
            client.log_metric(run, "ratio", math.inf)  # MLflow stores its largest number
            client.set_terminated(run, "FAILED" if (seed, lr) == (1, 0.2) else "FINISHED")
    found = results(read_mlflow(uri, "others", ASKED))
    assert [trial.status for trial in found.trials] == ["finished", "finished", "finished", "failed"]
    assert found.trials[0].metrics == {"acc": pytest.approx(0.6)}
    assert found.trials[0].run_id
    with pytest.raises(ConfigError, match=r"--experiment: must be an experiment .*but got 'other'.*others"):
        read_mlflow(uri, "other", ASKED)
    with pytest.raises(ConfigError, match="the database must exist"):
        read_mlflow(f"sqlite:///{tmp_path}/none.db", "others", ASKED)


def test_equal_sweeps_in_one_experiment_of_mlflow_are_named(tmp_path, new_database):
    from mlflow.tracking import MlflowClient

    from tune_dml.tracking.experiments import read_mlflow

    client = MlflowClient(uri := new_database(tmp_path))
    experiment = client.create_experiment("mine", (tmp_path / "files").as_uri())
    for sweep, key in (("rho1", "a"), ("rho2", "b"), ("", "")):
        for lr in (0.1, 0.2):
            tags = {"sweep": sweep, "tune_dml.trial_key": f"{key}-{lr}"} if sweep else {}
            run = client.create_run(experiment, tags=tags).info.run_id
            for name, value in (("lr", lr), ("seed", int(not sweep))):
                client.log_param(run, name, value)
            client.log_metric(run, "acc", 0.5)
            client.set_terminated(run)
    with pytest.raises(
        ConfigError, match=r"of rho\d and run \w{12} of rho\d: a config.* 0\. Report .* `tune-dml report rho1`\.$"
    ):
        results(read_mlflow(uri, "mine", ASKED))


def test_equal_seeds_are_not_certain_for_metrics_with_coarse_steps(tmp_path):
    steps = "\n".join(f"{lr},{seed},{acc}" for lr, acc in ((1, 0.625), (2, 0.75), (3, 0.75)) for seed in range(3))
    found = analyse(results(read_csv(table(tmp_path, f"lr,seed,acc\n{steps}\n"), ASKED)), margin=0.01)
    assert found.resolution == pytest.approx(0.125)
    assert found.knobs[0].sensitivity.verdict == "undecided"
