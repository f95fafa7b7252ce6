"""The studies against the papers: citations exist, and arms are compared on equal terms."""

import re
from dataclasses import replace

import generate_fidelity
import pytest
from claims import CLAIMS, Better
from helpers.together import for_each

from search_spaces.fidelity import SHEETS
from search_spaces.papers import BIRDS_CARS
from search_spaces.protocols.sec import SEC_MS
from trainables.losses import LOSSES
from trainables.losses.parts.proxies import ProxyLoss
from tune_dml.catalogue import papers, protocols, spaces
from tune_dml.papers.published import published_curve, published_rows
from tune_dml.planning.checks.conditions import conditions_of, our_name
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.report.analysis.knob import same_value
from tune_dml.report.published.comparable import condition_differences, our_metric
from tune_dml.space import METHOD, Decision

KINDS = {"section": "sections", "table": "tables", "figure": "figures"}
NUMBER = r"(?:[A-D]|[0-9]+)(?:\.[0-9]+)*(?![A-Za-z])"
PLACE = re.compile(rf"\b((?i:section|table|figure))s?\s+({NUMBER}(?:(?:, and |, | and ){NUMBER})*)")
OF_METHODS = {"R@1": "val/recall_at_1", "NMI": "val/nmi", "nDCG@8": "val/ndcg_at_8", "top5": "val/linear_top5"}
NOT_IN_TRAINING = ("verification_acc", "rank1@", "Recall@10", "Precision@10", "MAP@10")


def cited(text):
    """Return (part, kind, number) of every location that a text cites; a part holds until the next one."""
    part, found = "", []
    for piece in re.split(r"(supplement|rebuttal)", text):
        if piece in {"supplement", "rebuttal"}:
            part = piece
            continue
        for kind, numbers in PLACE.findall(piece):
            found += [(part, KINDS[kind.lower()], n.rstrip(".")) for n in re.split(r", and |, | and ", numbers)]
    return found


def unknown(paper, text):
    """Return cited locations that the paper, or its cited part, does not have."""
    known = {(part, kind): getattr(own, kind) for part, own in paper.parts.items() for kind in KINDS.values()}
    return [place for place in cited(text) if place[2] not in known.get(place[:2], ())]


def paper_of(citation):
    return next(paper for paper in papers().values() if paper.title == citation.title)


@for_each("name", spaces())
def test_a_space_cites_places_that_its_paper_has(name):
    citation = spaces()[name].citation
    if citation is not None:
        paper = paper_of(citation)
        assert paper.parts, f"{paper.key} has no index"
        assert unknown(paper, citation.location) == []
        tables = {number for _, kind, number in cited(citation.location) if kind == "tables"}
        drawn = {item.table for item in spaces()[name].published}
        assert not tables or not drawn or tables & drawn
        assert citation.location.startswith(("supplement", "rebuttal")) == ("" not in paper.parts)


@for_each("name", protocols())
def test_a_protocol_cites_places_that_its_paper_has(name):
    for source in set(protocols()[name].sources.values()):
        kind, _, rest = source.partition(": ")
        if kind == "paper" and rest.partition(",")[0] in papers():
            paper = papers()[rest.partition(",")[0]]
            assert unknown(paper, rest) == [], source
        elif kind == "paper":
            assert cited(rest) == [], f"{source}: names a place, and no paper that has it"


def test_a_claim_cites_places_that_its_paper_has():
    for claim in CLAIMS:
        assert cited(claim.source) or "reviewer" in claim.source, claim
        assert unknown(papers()[claim.paper], claim.source) == [], claim


def printed_pairs(claim):
    """Yield the printed numbers of each pair of methods of a claim; the best one where a value was chosen."""
    pairs = claim.test.pairs if isinstance(claim.test, Better) else ()
    for reference in spaces()[claim.study].published:
        curve = published_curve(reference)
        for first, second in pairs:
            if reference.hyperparameter == METHOD and {first, second} <= set(curve.values()):
                yield curve.values()[first], curve.values()[second]
            elif (reference.methods, reference.baseline_method) == ((first,), second):
                yield max(curve.values().values()), curve.baseline


def test_a_claim_says_how_many_printed_numbers_support_it_unless_all_do():
    counted = 0
    for claim in CLAIMS:
        pairs = list(printed_pairs(claim))
        higher, counted = sum(first > second for first, second in pairs), counted + len(pairs)
        said = re.findall(r"\((\d+) of (\d+) numbers\)", claim.source)
        assert said == [(str(higher), str(len(pairs)))] * (higher < len(pairs)), claim
    assert counted > 80


def test_wrong_citations_are_found():
    dro, mpa = papers()["DRO"], papers()["MPA"]
    assert unknown(dro, "section 4.3, Tables 2 and 4") == [("", "sections", "4.3")]
    assert unknown(mpa, "section 5.1, Tables 7 and 9") == [("", "sections", "5.1"), ("", "tables", "9")]
    assert unknown(papers()["SEC"], "supplement, Table 5; rebuttal, Table 6") == [("rebuttal", "tables", "6")]
    assert unknown(papers()["SEC"], "Table 5") == [("", "tables", "5")]


def settings_by_arm(name, dataset="glyphs"):
    plan = make_plan(study_of(Request(name, dataset, seeds=1)))
    return {arm.name: arm.base_settings for arm in plan.arms}


SPHEREFACE = dict.fromkeys(("Sphereface", "Sphereface+L2-reg", "Sphereface+SEC", "Sphereface+SEC-EMA"), 3)
ETA = {"cub200": 1.0, "cars196": 0.5, "sop": 1.0, "inshop": 1.0, "glyphs": 0.5}
STEPS = {"cub200": 8000, "cars196": 8000, "sop": 12_000, "inshop": 12_000}
MS_HEADS = {"MultiSimilarity": "fc"} | {
    f"MultiSimilarity+{penalty}": "bn_fc" for penalty in ("L2-reg", "SEC", "SEC-EMA")
}
SAMPLERS = dict.fromkeys(("Proxy-NCA++", "Proxy-Anchor"), "random")
SAMPLERS |= dict.fromkeys(("multi-similarity", "SupCon", "Circle", "Recall@k surrogate"), "m_per_class")


@pytest.mark.parametrize(
    ("space", "dataset", "path", "expected"),
    [
        *(("sec_face", dataset, "loss.margin", SPHEREFACE) for dataset in ("webface", "glyphs")),  # where it converges
        *(("sec_losses", dataset, "regularizer.eta", {"Triplet+SEC": eta}) for dataset, eta in ETA.items()),
        *(("sec_rho", dataset, "training.steps", {"": steps}) for dataset, steps in STEPS.items()),
        *(("sec_losses", dataset, "model.head", MS_HEADS) for dataset in STEPS),
        ("sec_losses", "cub200", "optim.lr", {"MultiSimilarity": 1e-5}),
        ("sec_losses", "cars196", "optim.lr", {"MultiSimilarity": 2e-5}),
        *(("later_losses", dataset, "batch.sampler", SAMPLERS) for dataset in STEPS),
        ("dro_gamma", "glyphs", "loss.drop_zeros", {"": True}),
        ("dro_gamma", "glyphs", "loss.denominator", {"mean of all pairs": "nonzero"}),
        *(
            (space, "glyphs", "loss.drop_zeros", {"DRO-KL_M": True})
            for space in ("dro_variants", "dro_chi2", "dro_imbalance", "dro_imbalance_512")
        ),
        ("dro_grouped_gamma", "cub200", "loss.beta", {"MS": 50}),
        ("dro_variants", "glyphs", "loss.name", {"mean of binomial losses": "binomial"}),
        ("npair_scale", "cub200", "batch.instances_per_class", {"SemihardTriplet": 3, "NormalizedNPair": 2}),
        ("npair_scale", "cub200", "optim.lr", {"SemihardTriplet": 5e-6, "NormalizedNPair": 1e-5}),
    ],
)
def test_arms_have_the_printed_settings(space, dataset, path, expected):
    arms = settings_by_arm(space, dataset)
    assert {name: arms[name][path] for name in expected} == expected


@pytest.mark.parametrize(
    ("space", "dataset", "path", "values"),
    [
        ("dro_chi2", "glyphs", "loss.name", {"margin_all", "dro_chi2", "dro_topk", "dro_kl"}),
        ("dro_grouped_gamma", "cub200", "loss.reduction", {"mean"}),
        ("sec_face_head", "webface", "model.head", {"fc", "fc_bn"}),
        ("dro_imbalance", "inshop", "model.embedding_dim", {1024}),
        ("dro_imbalance_512", "inshop", "model.embedding_dim", {512}),
        *(("later_losses", dataset, "model.embedding_dim", {512}) for dataset in STEPS),
    ],
)
def test_arms_share_or_compare_the_printed_settings(space, dataset, path, values):
    assert {arm[path] for arm in settings_by_arm(space, dataset).values() if path in arm} == values


def plain_multi_similarity(name, dataset):
    """Return the protocols of a study's arms with this loss only."""
    method = {"loss.name": "multi_similarity", "regularizer.name": "none"}
    plan = make_plan(study_of(Request(name, dataset, seeds=1)))
    return {arm.protocol.name for arm in plan.arms if method.items() <= arm.base_settings.items()}


def test_multi_similarity_alone_never_trains_by_its_protocol_with_sec():
    with_sec = {protocol.name for protocol in SEC_MS}
    found = {
        (name, dataset): plain_multi_similarity(name, dataset)
        for name in ("dro_runs", "label_noise", "long_tail", "pictures_per_class", "later_losses", "dro_grouped_gamma")
        for dataset in ("cub200", "cars196")
    }
    assert all(found.values())
    assert {pair for pair, names in found.items() if names & with_sec} == set()
    assert found["dro_runs", "cub200"] == {"ms/cub200"}
    assert found["dro_runs", "cars196"] == {"sec/cars196-ms-plain"}


@pytest.mark.parametrize("name", ["label_noise", "long_tail", "pictures_per_class"])
@pytest.mark.parametrize("dataset", ["glyphs", "cub200", "cars196", "sop", "inshop"])
def test_studies_on_one_protocol_share_it(name, dataset):
    plan = make_plan(study_of(Request(name, dataset, seeds=1)))
    assert len({arm.protocol.name for arm in plan.arms}) == 1
    shared = ("model.embedding_dim", "optim.lr", "optim.backbone_lr_multiplier", "batch.instances_per_class")
    assert len({tuple(arm.base_settings[path] for path in shared) for arm in plan.arms}) == 1


def test_imbalance_has_every_batch_size_and_method_of_the_figure():
    plan = make_plan(study_of(Request("dro_imbalance", "inshop", seeds=1)))
    assert {cell.settings["batch.batch_size"] for cell in plan.cells} == {80, 160, 320, 480, 640}
    assert {arm.name for arm in plan.arms} == {"SH", "DWS", "DRO-TopK_M", "DRO-TopK-PN_M", "DRO-KL_M"}


def test_faces_and_contrastive_learning_print_every_column():
    faces = {(item.dataset, item.metric) for item in spaces()["sec_face"].published}
    assert {metric for dataset, metric in faces if dataset == "MegaFace"} == {f"rank1@1e{n}" for n in (3, 4, 5, 6)}
    for name, epochs in (("sec_simclr", 100), ("sec_simclr_200", 200)):
        curves = spaces()[name].published
        assert {item.where["epochs"] for item in curves} == {epochs}
        methods = {method for item in curves for method in item.methods if item.metric == "top5"}
        assert methods == {"NT-Xent+L2-reg", "NT-Xent+SEC", "NT-Xent+SEC-EMA"}


def test_recall_is_measured_at_the_k_of_the_papers():
    ks = {name: tuple(protocols()[name].settings["evaluation.ks"]) for name in protocols() if "/cub200" in name}
    assert {k for name, k in ks.items() if name.startswith(("sec/", "mpa/"))} == {(1, 2, 4, 8)}
    assert {k for name, k in ks.items() if name.startswith("dro/")} == {(1, 2, 4, 8, 16, 32)}
    assert tuple(protocols()["mpa/sop"].settings["evaluation.ks"]) == (1, 10, 100)


def test_printed_percentages_are_percentages():
    for row in published_rows():
        assert "fraction" not in row.metric, row
        assert "mean_of" not in row.metric, row
        if row.metric.startswith(("R@", "nDCG@", "MAP", "NMI", "F1", "top", "rank1", "verification")):
            assert row.value > 5, row
            assert row.value <= 100, row


def test_every_printed_metric_of_training_is_one_that_we_log():
    assert {printed: our_metric(printed) for printed in OF_METHODS} == OF_METHODS
    unknown_ones = {row.metric for row in published_rows() if our_metric(row.metric) is None}
    assert all(metric.startswith(NOT_IN_TRAINING) for metric in unknown_ones)


def test_every_metric_printed_along_a_knob_is_a_separate_curve():
    """The report draws each; a table with two numbers for a value would have none."""
    items = [item for space in spaces().values() for item in space.published]
    curves = [(item, name) for item in items for name in published_curve(item).others]
    measured = [(item, name) for item, name in curves if (our_metric(name) or "").startswith("val/")]
    assert len(measured) > 100
    for item, name in measured:
        assert published_curve(replace(item, metric=name)).points


def test_methods_of_the_tables_are_methods_that_we_have():
    for paper in papers().values():
        for table in paper.tables:
            for method in table.methods:
                assert method.settings["loss.name"] in LOSSES
    for dataset in BIRDS_CARS:
        assert our_name(dataset) in {"cub200", "cars196"}


def test_every_number_that_the_papers_measured_belongs_to_a_study():
    """A printed row that its authors ran is a row of some space's curve, of its baseline, or of an arm's name."""
    covered = set()
    for space in spaces().values():
        arms = {arm.name for arm in space.every_arm}
        for item in space.published:
            names = {*item.methods, item.baseline_method} if item.methods else arms
            covered |= {(item.paper, item.table, item.dataset, name) for name in names}
    rows = {(row.paper, row.table, row.dataset, row.method) for row in published_rows() if conditions_of(row)}
    lacking = {row for row in rows - covered if row[1] != "text R4"}
    assert {row[:2] + row[3:] for row in lacking} <= {("SEC-supplement", "6", "Softmax")}


OURS = {"glyphs", "digits", "image_folder", "features", "objects"}
ON_PAPERS = [
    (name, dataset)
    for name, space in spaces().items()
    if space.published
    for dataset in sorted({protocol.dataset for protocol in space.protocols} - OURS)
]


def is_at(cell, reference, x):
    """Return whether a cell is the method, or has the value, of a printed number."""
    if reference.hyperparameter == METHOD:
        return cell.arm == x
    return any(same_value(value, x) for value in cell.knobs.values())


@for_each("name, dataset", ON_PAPERS)
def test_a_study_on_the_papers_data_meets_the_conditions_of_its_printed_numbers(name, dataset):
    settings = {"data.split": "paper_test_selection"}
    plan = make_plan(study_of(Request(name, dataset, seeds=1, name="s", settings=settings)), data_digest="d" * 64)
    for reference in spaces()[name].published:
        if our_name(reference.dataset) in {dataset, "lfw", "megaface"}:
            for point in published_curve(reference).points:
                cells = [cell for cell in plan.cells if is_at(cell, reference, point.x)]
                differing = [condition_differences(point.row, cell.settings) for cell in cells]
                assert differing, (reference, point.x)
                assert [] in differing, (reference, point.x, min(differing, key=len))


SHEET_OF = {name: sheet for sheet in SHEETS for name in sheet.protocols}
EVERYWHERE = {
    *(
        "start of the backbone",
        "head",
        "start of the head",
        "weight decay",
        "learning rates",
        "schedule",
        "steps",
        "batches",
    ),
    *("batch normalisation", "training pictures", "test pictures", "channels", "published number"),
}


RESOLVED = {name: generate_fidelity.settings_of(name) for name in SHEET_OF}


def holds(decision: Decision, settings) -> bool:
    pairs = [(value, settings[path]) for path, value in decision.settings.items() if path in settings]
    return len(pairs) == len(decision.settings) and all(generate_fidelity.is_same(*pair) for pair in pairs)


def decisions_about(name):
    return [decision for decision in SHEET_OF[name].decisions if decision.applies_to(name)]


def wrong(decision: Decision, settings) -> bool:
    if decision.verdict == "equal":
        return not holds(decision, settings)
    return decision.verdict == "differs" and decision.settings != {} and holds(decision, settings)


@for_each("name", SHEET_OF)
def test_fidelity_sheets_agree_with_our_protocols(name):
    assert [item for item in decisions_about(name) if wrong(item, RESOLVED[name])] == []


def test_every_decision_of_a_sheet_has_its_evidence():
    for sheet in SHEETS:
        for decision in sheet.decisions:
            assert decision.settings or decision.ours, decision
            assert (decision.verdict == "equal") == (decision.why == ""), decision
            for pattern in decision.protocols:
                narrowed = Decision("steps", "", "", protocols=(pattern,))
                assert any(map(narrowed.applies_to, sheet.protocols)), (sheet.title, pattern)


def test_every_protocol_of_a_paper_has_a_sheet_with_every_part():
    assert set(SHEET_OF) == {name for name, own in protocols().items() if own.origin == "paper" and "+" not in name}
    for name in SHEET_OF:
        parts = {decision.part for decision in decisions_about(name)}
        has_proxies = issubclass(LOSSES[str(RESOLVED[name]["loss.name"])], ProxyLoss)
        expected = EVERYWHERE | ({"start of proxies"} if has_proxies else set())
        assert expected <= parts, (name, expected - parts)


NOT_DECIDED = (
    "evaluation.",
    "task.name",
    "task.test_sets",
    "augment.name",
    "augment.resize",
    "training.eval_every",
    "loss.name",
)


def test_sheets_and_protocols_agree_on_what_is_stated():
    """No row is `equal` in a setting that its protocol calls open, and every stated setting has a row."""
    for name, sheet in SHEET_OF.items():
        sources = protocols()[name].sources
        opened = {path for path, source in sources.items() if source.startswith("open")}
        stated = {path for path in sources.keys() - opened if not path.startswith(NOT_DECIDED)}
        rows = decisions_about(name)
        equal = {path for row in rows if row.verdict == "equal" for path in row.settings}
        assert equal & opened == set(), (sheet.title, name)
        assert stated - {path for row in rows for path in row.settings} == set(), (sheet.title, name)


def test_a_wrong_sheet_is_detected():
    settings = RESOLVED["sec/cars196"]
    assert not wrong(Decision("start of the head", "", "", {"model.head_init": "torch"}), settings)
    assert wrong(Decision("start of the head", "", "", {"model.head_init": "he_fan_out"}), settings)
    assert wrong(Decision("start of the head", "", "", {"model.head_init": "torch"}, verdict="differs"), settings)
    assert wrong(Decision("schedule", "", "", {"optim.lr_milestones": [4000]}), settings)
    assert wrong(Decision("steps", "", "", {"training.no_such_setting": 1}), settings)
