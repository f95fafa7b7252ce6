"""The papers: who wrote them, what they measure on, and what each table in `published.csv` holds."""

from __future__ import annotations

from tune_dml.space import Paper, Table

BIRDS_CARS = ("CUB200-2011", "Cars196")
RETRIEVAL = (*BIRDS_CARS, "SOP", "In-Shop")
FACES = ("LFW", "AgeDB30", "CFPFP", "MegaFace")
CIFAR = ("CIFAR-10", "CIFAR-100")

SEC = Paper(
    key="SEC",
    authors="Zhang, Li, Zhang",
    title="Deep Metric Learning with Spherical Embedding",
    venue="NeurIPS",
    year=2020,
    url="https://arxiv.org/abs/2011.02785",
    code="Dyfine/SphericalEmbedding f118c0e",
    datasets=(*RETRIEVAL, "CASIA-WebFace", *FACES, *CIFAR),
    tables=(
        Table("SEC-supplement", "3", "the triplet loss with L2-reg along eta", ("Cars196",)),
        Table(
            "SEC-supplement", "4", "the triplet loss with SEC-EMA along rho, with the norms it ends at", ("Cars196",)
        ),
        Table(
            "SEC-supplement", "5", "four losses plain and with L2-reg, SEC and SEC-EMA, at the chosen eta", RETRIEVAL
        ),
        Table("SEC-supplement", "6", "face losses plain, with L2-reg, SEC and SEC-EMA", FACES, backbone="not stated"),
        Table(
            "SEC-supplement",
            "7",
            "NT-Xent plain, with L2-reg, SEC and SEC-EMA, after 100 and 200 epochs",
            CIFAR,
            backbone="ResNet-50",
            embedding_dim=128,
        ),
        Table(
            "SEC-rebuttal",
            "1",
            "NT-Xent plain and with SEC, after 150 epochs",
            ("CIFAR-10",),
            backbone="not stated",
            embedding_dim=128,
        ),
        Table("SEC-rebuttal", "2", "the semihard triplet loss with L2-reg along eta and with SEC", ("Cars196",)),
        Table("SEC-rebuttal", "4", "the tuplet margin loss plain and with SEC", RETRIEVAL),
        Table("SEC-rebuttal", "5", "the semihard triplet loss with SEC, batch and weight normalisation", ("Cars196",)),
        Table(
            "SEC-rebuttal", "text R4", "the variance of training norms, four losses plain and with SEC", ("Cars196",)
        ),
    ),
)

DRO = Paper(
    key="DRO",
    authors="Qi, Yan, Wu, Wang, Yang",
    title="A Simple and Effective Framework for Pairwise Deep Metric Learning",
    venue="ECCV",
    year=2020,
    url="https://arxiv.org/abs/1912.11194",
    code="qiqi-helloworld, Pairewise-Distance-Metric-Learning e12a417",
    datasets=(*BIRDS_CARS, "In-Shop"),
    tables=(
        Table(
            "DRO",
            "1",
            "DRO-TopK, DRO-TopK-PN and DRO-KL at their best values, and rivals",
            BIRDS_CARS,
            embedding_dim=1024,
        ),
        Table("DRO", "2", "DRO-KL-G along gamma, lifted structure and multi-similarity", BIRDS_CARS, embedding_dim=64),
        Table("DRO", "3", "as Table 1", ("In-Shop",), embedding_dim=1024),
        Table("DRO", "4", "as Table 2", ("In-Shop",), embedding_dim=64),
        Table("DRO", "Fig4 text", "DRO-TopK with binomial losses, mean", ("CUB200-2011",), embedding_dim=1024, runs=5),
        Table("DRO", "Fig5 text", "DRO-TopK, DRO-TopK-PN and DRO-KL as pairs grow unbalanced", ("In-Shop",)),
    ),
)

MPA = Paper(
    key="MPA",
    authors="Saeki et al.",
    title="Multi-Proxy Anchor Family Loss for Several Types of Gradients",
    venue="CVIU",
    year=2023,
    url="https://arxiv.org/abs/2110.03997",
    datasets=(*BIRDS_CARS, "SOP"),
    tables=(
        Table("MPA", "3", "five rankings of ten neighbours and what each metric makes of them", ("worked example",)),
        Table("MPA", "4", "the three losses, reruns of SoftTriple and Proxy-Anchor, rivals", ("CUB200-2011",), runs=3),
        Table("MPA", "5", "as Table 4", ("Cars196",), runs=3),
        Table("MPA", "6", "as Table 4", ("SOP",), runs=3),
        Table("MPA", "7", "MPA along the number of proxies", ("CUB200-2011",), runs=3),
        Table("MPA", "8", "MPA along the number of proxies", ("Cars196",), runs=3),
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
