"""Training protocols of each data set, ours and the papers', one file per source, found by discovery.

Every setting of a paper's protocol says whether the paper, the released code or we decided it (`tune-dml train
--protocol sec/cars196 --show`). All protocols hold out training classes for validation. The papers selected on the test
classes; `--set data.split=paper_test_selection` repeats that, labelled. A row holds the settings of one section;
`# fmt: skip` keeps the rows.
"""
