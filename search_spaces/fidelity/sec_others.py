"""SEC beyond retrieval: faces and contrastive learning, of which no code was released."""

from search_spaces.fidelity import shared
from search_spaces.papers import SEC
from search_spaces.protocols.faces import FACES
from search_spaces.protocols.simclr import SIMCLR, SIMCLR_LINEAR_HEAD, SIMCLR_LONGER
from tune_dml.space import Decision, FidelitySheet

_NOT_RELEASED = "no code was released; supplement, section B"


def _unknown(part: str, ours: str, why: str, *protocols: str, theirs: str = "not stated") -> Decision:
    return shared.unknown(part, ours, why, *protocols, source=_NOT_RELEASED, theirs=theirs)


_HEAD_UNKNOWN = _unknown(
    "start of the head", "torch's start (model.head_init = torch)", "As in the authors' code for retrieval."
)

_TWO_LAYERS = ("sec/cifar10", "sec/cifar100", "*-200")
_AS_REBUTTAL = "As the rebuttal prints for the linear head."

FACES_SHEET = FidelitySheet(
    "SEC: faces",
    SEC,
    "Supplement, sections B.2 and D.2 and Table 6; no code was released.",
    shared.names_of(*FACES),
    (
        _unknown(
            "start of the backbone",
            "ResNet-50 from random weights",
            "A usual backbone of this data set.",
            theirs="neither the start nor the backbone is stated",
        ),
        _unknown(
            "head",
            "one linear layer and batch normalisation, 512 dimensions",
            "A usual head of this data set.",
        ),
        _HEAD_UNKNOWN,
        _unknown(
            "loss",
            "margin 0.35, scale 64",
            "The values of CosFace's own paper.",
            "*-cosface",
            theirs="largely as the original paper; no value is printed",
        ),
        _unknown(
            "loss",
            "margin 0.4, scale 64",
            "A margin between the diverging one and none.",
            "sec/webface",
            theirs="a margin slightly below 0.5, at which training diverges",
        ),
        _unknown(
            "loss",
            "margin 3",
            "The next smaller one.",
            "*-sphereface",
            theirs="a margin slightly below 4, at which training diverges",
        ),
        _unknown("start of proxies", "class weights are Xavier normal", "Only their directions enter the loss."),
        _unknown("weight decay", "5e-4 on weights and class weights", "A usual setting of this data set."),
        Decision("learning rates", "starts at 0.1", "supplement, section B.2", {"optim.lr": 0.1}),
        _unknown(
            "learning rates",
            "SGD with momentum 0.9; class weights have the rate of the network",
            "A usual setting of this data set.",
            theirs="neither the optimizer nor the rate of the class weights is stated",
        ),
        Decision(
            "schedule",
            "divided by 10 at 10 and 14 epochs",
            "supplement, section B.2",
            {"optim.lr_schedule": "epoch_milestones", "optim.lr_epochs": [10, 14], "optim.lr_decay": 0.1},
        ),
        _unknown(
            "batch normalisation",
            "trains, over the batch of all workers",
            "The backbone has no pretrained statistics to keep.",
        ),
        _unknown(
            "training pictures",
            "aligned faces of 112 pixels, mirrored half the time",
            "Mirror images are the usual augmentation of aligned faces.",
        ),
        _unknown("test pictures", "aligned faces of 112 pixels", "The verification files have that size."),
        _unknown("channels", "RGB in [-1, 1]", "Our ResNet takes pictures in this form."),
        _unknown("batches", "512 pictures of a shuffled pass", "A usual batch size of this data set."),
        Decision("steps", "16 epochs", "supplement, section B.2", {"training.epochs": 16}),
        _unknown(
            "published number",
            "last evaluation, on 5% of the people held out",
            "Test sets stay sealed.",
            theirs="how an evaluation is selected is not stated; there are no validation people",
        ),
    ),
)

SIMCLR_SHEET = FidelitySheet(
    "SEC: contrastive learning",
    SEC,
    "Supplement, section B.3 and Table 7; rebuttal, Table 1; no code was released.",
    shared.names_of(*SIMCLR, *SIMCLR_LONGER, *SIMCLR_LINEAR_HEAD),
    (
        Decision(
            "start of the backbone",
            "ResNet-50 from random weights; how they are drawn is not stated",
            "supplement, section B.3",
            {"model.backbone": "resnet50", "model.pooling": "avg", "model.weights": None},
            ours="He normal, as torchvision; a stem for small pictures",
        ),
        Decision(
            "head",
            "two layers",
            "supplement, section B.3",
            {"model.head": "mlp"},
            protocols=_TWO_LAYERS,
        ),
        _unknown("head", "128 dimensions", _AS_REBUTTAL, *_TWO_LAYERS),
        Decision(
            "head",
            "one linear layer to 128 dimensions",
            "rebuttal, Table 1",
            {"model.head": "fc", "model.embedding_dim": 128},
            protocols=("*-linear",),
        ),
        _HEAD_UNKNOWN,
        _unknown("loss", "temperature 0.5", _AS_REBUTTAL, *_TWO_LAYERS),
        Decision("loss", "temperature 0.5", "rebuttal, Table 1", {"loss.temperature": 0.5}, protocols=("*-linear",)),
        _unknown("weight decay", "1e-4 on weights", "The value is ours; no source of the paper has one."),
        Decision(
            "learning rates",
            "starts at 0.5, chosen among 0.5, 1 and 1.5",
            "supplement, section B.3",
            {"optim.lr": 0.5},
            protocols=_TWO_LAYERS,
        ),
        _unknown("learning rates", "SGD with momentum 0.9", f"{_AS_REBUTTAL} The momentum is ours.", *_TWO_LAYERS),
        Decision(
            "learning rates",
            "SGD; its momentum is not stated",
            "rebuttal, Table 1",
            {"optim.name": "sgd"},
            ours="momentum 0.9",
            protocols=("*-linear",),
        ),
        shared.unknown(
            "learning rates",
            "0.3",
            "The middle of the printed range.",
            "*-linear",
            source="rebuttal, Table 1",
            theirs="a value from 0.1 to 0.5; which one is not stated",
        ),
        Decision("schedule", "cosine", "supplement, section B.3", {"optim.lr_schedule": "cosine"}),
        Decision(
            "batch normalisation",
            "global, over all devices",
            "supplement, section B.3",
            {"model.freeze_bn": False},
            ours="over the batch of all workers",
        ),
        Decision(
            "training pictures",
            "random flips, crops and colour distortions",
            "supplement, section B.3",
            {"augment.name": "simclr"},
        ),
        _unknown("test pictures", "the picture as stored", "Pictures have one size."),
        _unknown("channels", "RGB in [-1, 1]", "Our ResNet takes pictures in this form."),
        _unknown("batches", "256 pictures of a shuffled pass", _AS_REBUTTAL, *_TWO_LAYERS),
        Decision(
            "batches",
            "256 pictures",
            "rebuttal, Table 1",
            {"batch.batch_size": 256},
            ours="of a shuffled pass",
            protocols=("*-linear",),
        ),
        Decision(
            "steps",
            "100 epochs",
            "supplement, Table 7",
            {"training.epochs": 100},
            protocols=("sec/cifar10", "sec/cifar100"),
        ),
        Decision("steps", "200 epochs", "supplement, Table 7", {"training.epochs": 200}, protocols=("*-200",)),
        Decision("steps", "150 epochs", "rebuttal, Table 1", {"training.epochs": 150}, protocols=("*-linear",)),
        Decision(
            "published number",
            "a linear classifier: SGD with momentum 0.9 in batches of 256 for 100 epochs, its rate 5 of 1, 2, 5 and 10, "
            "divided by 5 at 60, 75 and 90 epochs; selection is not stated",
            "supplement, section B.3",
            {"task.linear_lrs": [1.0, 2.0, 5.0, 10.0], "task.linear_epochs": 100, "task.linear_batch_size": 256},
            ours="the same momentum and divisions; the rate is chosen on pictures held out from training",
            protocols=_TWO_LAYERS,
        ),
        Decision(
            "published number",
            "a linear classifier in batches of 256 for 50 epochs, its rate among 2, 5 and 10",
            "rebuttal (reviewer 2, R2)",
            {"task.linear_lrs": [2.0, 5.0, 10.0], "task.linear_epochs": 50, "task.linear_batch_size": 256},
            protocols=("*-linear",),
        ),
        Decision(
            "published number",
            "the best accuracy of the classifier is reported",
            "rebuttal, Table 1",
            {"data.split": "paper_test_selection"},
            ours="the rate is chosen on pictures held out from training",
            verdict="differs",
            why="Test pictures stay sealed.",
            protocols=("*-linear",),
        ),
    ),
)
