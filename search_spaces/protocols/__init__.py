"""How each data set is trained and judged: ours and the papers' protocols, one file per source, found by being there.

Every setting of a paper's protocol says whether the paper, the released code or we decided it (`tune-dml train
--protocol sec/cars196 --show`). All of them hold out training classes for validation; the papers selected on the test
classes, which `--set data.split=paper_test_selection` does again, labelled.
"""
