"""What `tune-dml report` prints."""


def test_without_a_baseline_there_are_no_columns_for_it(command_line, tmp_path):
    rows = ["lr,seed,accuracy", *(f"{lr},{seed},{0.5 + lr + 0.01 * seed}" for lr in (0.1, 0.2) for seed in range(3))]
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    words = ("--from-csv", tmp_path / "runs.csv", "--metric", "accuracy", "--margin", "0.01", "-o", tmp_path / "out")
    out = command_line("report", *words)[1]
    assert "comparison bar" in out
    assert "minus baseline" not in out
