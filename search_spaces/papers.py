"""The papers: their authors, data sets and citable parts, and the content of their tables in `published.csv`."""

from search_spaces.printed_methods import CONTRASTIVE, FACE, LINEAR_HEAD, PAIRWISE, PROXY, SPHERICAL, TUPLET, WITH_HEADS
from tune_dml.space import CurveReference, Paper, PaperTable, Part

BIRDS_CARS = ("CUB200-2011", "Cars196")
RETRIEVAL = (*BIRDS_CARS, "SOP", "In-Shop")
FACES = ("LFW", "AgeDB30", "CFPFP", "MegaFace")
_CIFAR = ("CIFAR-10", "CIFAR-100")

SEC = Paper(
    key="SEC",
    authors="Zhang, Li, Zhang",
    title="Deep Metric Learning with Spherical Embedding",
    venue="NeurIPS",
    year=2020,
    url="https://arxiv.org/abs/2011.02785",
    code="Dyfine/SphericalEmbedding f118c0e",
    datasets=(*RETRIEVAL, "CASIA-WebFace", *FACES, *_CIFAR),
    parts={
        "supplement": Part(
            sections=("A", "A.1", "A.2", "B", "B.1", "B.2", "B.3", "C", "C.1", "C.2", "C.3", "D", "D.1", "D.2"),
            tables=("1", "2", "3", "4", "5", "6", "7"),
            figures=("1", "2", "3", "4"),
        ),
        "rebuttal": Part(tables=("1", "2", "3", "4", "5"), figures=("1", "2")),
    },
    tables=(
        PaperTable("SEC-supplement", "3", "the triplet loss with L2-reg for several eta", ("Cars196",), methods=SPHERICAL),
        PaperTable("SEC-supplement", "4", "the triplet loss with SEC-EMA for several rho, with the final norms", ("Cars196",),
                   methods=SPHERICAL, unprinted=("regularizer.eta",), remarks=("source_note", "initial_mean_norm")),
        PaperTable("SEC-supplement", "5", "four losses plain and with L2-reg, SEC and SEC-EMA, at the chosen eta", RETRIEVAL,
                   methods=SPHERICAL, remarks=("source_note", "backbone")),
        PaperTable("SEC-supplement", "6", "face losses plain, with L2-reg, SEC and SEC-EMA", FACES,
                   backbone=None, embedding_dim=None, methods=FACE, remarks=("train_set", "eta_schedule")),
        PaperTable("SEC-supplement", "7", "NT-Xent plain, with L2-reg, SEC and SEC-EMA, after 100 and 200 epochs", _CIFAR,
                   backbone="ResNet-50", embedding_dim=None, methods=CONTRASTIVE),
        PaperTable("SEC-rebuttal", "1", "NT-Xent plain and with SEC, after 150 epochs", ("CIFAR-10",),
                   backbone="ResNet-50", embedding_dim=128, methods=LINEAR_HEAD,
                   unprinted=("optim.lr", "regularizer.schedule")),
        PaperTable("SEC-rebuttal", "2", "the semihard triplet loss with L2-reg for several eta, and with SEC", ("Cars196",),
                   methods=SPHERICAL, remarks=("source_note", "mu")),
        PaperTable("SEC-rebuttal", "4", "the tuplet margin loss plain and with SEC", RETRIEVAL,
                   methods=TUPLET, remarks=("source_note", "lr(head/backbone/decay)")),
        PaperTable("SEC-rebuttal", "5", "the semihard triplet loss with SEC, batch and weight normalisation", ("Cars196",),
                   methods=WITH_HEADS, unprinted=("regularizer.eta",)),
        PaperTable("SEC-rebuttal", "text R4", "the variance of training norms of four losses, plain and with SEC", ("Cars196",),
                   methods=SPHERICAL, unprinted=("regularizer.eta",)),
    ),
)  # fmt: skip


def chosen_values(methods: tuple[str, ...], knob: str, baseline: str, note: str) -> tuple[CurveReference, ...]:
    """Return the curves of Table 5, which has only the values chosen for CUB, SOP and In-Shop."""
    table = SEC.table("5", "supplement")
    datasets = ("CUB200-2011", "SOP", "In-Shop")
    return tuple(table.curve(dataset, methods, knob, baseline=baseline, note=note) for dataset in datasets)


DRO = Paper(
    key="DRO",
    authors="Qi, Yan, Wu, Wang, Yang",
    title="A Simple and Effective Framework for Pairwise Deep Metric Learning",
    venue="ECCV",
    year=2020,
    url="https://arxiv.org/abs/1912.11194",
    code="qiqi-helloworld, Pairewise-Distance-Metric-Learning e12a417",
    datasets=(*BIRDS_CARS, "In-Shop"),
    parts={
        "": Part(
            sections=(
                *("1", "2", "3", "3.1", "3.2", "3.3", "4", "4.1", "4.2", "4.2.1", "4.2.2", "4.2.3", "4.2.4", "5"),
                *("6", "6.1", "6.1.1", "6.1.2", "6.1.3", "6.2"),
            ),
            tables=("1", "2", "3", "4"),
            figures=("1", "2", "3", "4", "5"),
        )
    },
    tables=(
        PaperTable("DRO", "1", "DRO-TopK, DRO-TopK-PN and DRO-KL at their best values, and other losses", BIRDS_CARS,
                   embedding_dim=1024, methods=PAIRWISE, unprinted=("loss.k", "loss.gamma"),
                   remarks=("source_note", "K_grid", "gamma_grid", "base_loss")),
        PaperTable("DRO", "2", "DRO-KL-G for several gamma, lifted structure and multi-similarity", BIRDS_CARS,
                   embedding_dim=64, methods=PAIRWISE),
        PaperTable("DRO", "3", "as Table 1", ("In-Shop",),
                   embedding_dim=1024, methods=PAIRWISE, unprinted=("loss.k", "loss.gamma"),
                   remarks=("source_note", "K_grid", "gamma_grid", "base_loss")),
        PaperTable("DRO", "4", "as Table 2", ("In-Shop",), embedding_dim=64, methods=PAIRWISE),
        PaperTable("DRO", "Fig4 text", "DRO-TopK with binomial losses, mean of the runs", ("CUB200-2011",),
                   embedding_dim=1024, runs=5, methods=PAIRWISE, unprinted=("loss.k",), remarks=("runs",)),
        PaperTable("DRO", "Fig5 text", "DRO-TopK, DRO-TopK-PN and DRO-KL for growing imbalance of the pairs", ("In-Shop",),
                   methods=PAIRWISE, remarks=("source_note", "pos_neg_ratio")),
    ),
)  # fmt: skip


def _mpa(number: str, content: str, dataset: str, *remarks: str) -> PaperTable:
    return PaperTable("MPA", number, content, (dataset,), runs=3, methods=PROXY, remarks=(*remarks, "runs"))


MPA = Paper(
    key="MPA",
    authors="Saeki et al.",
    title="Multi-Proxy Anchor Family Loss for Several Types of Gradients",
    venue="CVIU",
    year=2023,
    url="https://arxiv.org/abs/2110.03997",
    datasets=(*BIRDS_CARS, "SOP"),
    parts={
        "": Part(
            sections=(
                *("1", "2", "2.1", "2.2", "3", "3.1", "3.2", "3.3", "3.4", "3.5"),
                *("4", "4.1", "4.2", "4.3", "4.4", "5"),
            ),
            tables=("1", "2", "3", "4", "5", "6", "7", "8"),
            figures=("1", "2", "3"),
        )
    },
    tables=(
        PaperTable(
            "MPA",
            "3",
            "five rankings of ten neighbours with the value of each metric",
            ("worked example",),
            remarks=("R",),
        ),
        _mpa(
            "4", "the three losses, reruns of SoftTriple and Proxy-Anchor, other losses", "CUB200-2011", "source_note"
        ),
        _mpa("5", "as Table 4", "Cars196", "source_note"),
        _mpa("6", "as Table 4", "SOP", "source_note"),
        _mpa("7", "MPA for several numbers of proxies", "CUB200-2011"),
        _mpa("8", "as Table 7", "Cars196"),
    ),
)
PROXY_ANCHOR = Paper(
    key="ProxyAnchor",
    authors="Kim, Kim, Cho, Kwak",
    title="Proxy Anchor Loss for Deep Metric Learning",
    venue="CVPR",
    year=2020,
    url="https://arxiv.org/abs/2003.13911",
    code="tjddus9597/Proxy-Anchor-CVPR2020 51db570",
    datasets=RETRIEVAL,
)

SOFT_TRIPLE = Paper(
    key="SoftTriple",
    authors="Qian, Shang, Sun, Hu, Li, Jin",
    title="SoftTriple Loss: Deep Metric Learning Without Triplet Sampling",
    venue="ICCV",
    year=2019,
    url="https://arxiv.org/abs/1909.05235",
    code="idstcv/SoftTriple cc1c32d",
    datasets=(*BIRDS_CARS, "SOP"),
)

MULTI_SIMILARITY = Paper(
    key="MS",
    authors="Wang, Han, Huang, Dong, Scott",
    title="Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning",
    venue="CVPR",
    year=2019,
    url="https://arxiv.org/abs/1904.06627",
    code="MalongTech/research-ms-loss 8db6c9c",
    datasets=RETRIEVAL,
)
