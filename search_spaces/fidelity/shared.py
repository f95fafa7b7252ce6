"""Decisions, settings and sentences that several fidelity sheets share."""

from tune_dml.space import Decision, Protocol, Setting

WEIGHTS: dict[str, Setting] = {"model.backbone": "bn_inception", "model.weights": "bn_inception-52deb4733.pth"}
_SHAPE: dict[str, Setting] = {"augment.ratio": [3 / 4, 4 / 3], "augment.flip": 0.5}
_CROP_227: dict[str, Setting] = {"augment.crop": 227, "augment.scale": [0.16, 1.0], **_SHAPE}
CROP_224: dict[str, Setting] = {"augment.crop": 224, "augment.scale": [0.08, 1.0], **_SHAPE}
ON_VALIDATION = "last evaluation, on validation classes taken from the training classes; test classes stay sealed"
_SELECTION = "Selection on test classes is a labelled mode here (data.split=paper_test_selection), not the default."
AT_256 = "from the picture with a shorter side of 256 pixels"
CUT_AT_256 = "Pictures are stored with a shorter side of 256 pixels, so a small window is enlarged from fewer pixels."


def names_of(*protocols: Protocol) -> tuple[str, ...]:
    """Return the names of protocols."""
    return tuple(protocol.name for protocol in protocols)


def unknown(part: str, ours: str, why: str, *protocols: str, source: str, theirs: str = "not stated") -> Decision:
    """Return a decision that code and text leave open, with our choice and its reason; by default of all protocols."""
    about = protocols or ("*",)
    return Decision(part, theirs, source, ours=ours, verdict="unknown", why=why, protocols=about)  # type: ignore[arg-type]


def published_weights(source: str) -> Decision:
    """The backbone starts from the file that every released code loads."""
    return Decision("start of the backbone", "BN-Inception with the published ImageNet weights", source, WEIGHTS)


def no_clipping(source: str) -> Decision:
    """Gradients are not clipped."""
    return Decision("gradients", "no limit", source, {"optim.clip_value": None, "optim.clip_norm": None})


def random_crop_227(source: str) -> Decision:
    """Training sees windows of the picture at 256 pixels."""
    window = "a window of .16 to 1 of the area and ratio 3/4 to 4/3 resized to 227, mirrored half the time"
    return Decision("training pictures", f"shorter side 256, {window}", source, _CROP_227)


def random_crop_224(source: str) -> Decision:
    """Training sees windows of .08 of the area and more."""
    window = "a window of .08 to 1 of the area and ratio 3/4 to 4/3 resized to 224, mirrored half the time"
    return Decision("training pictures", window, source, CROP_224)


def cut_from_original(source: str) -> Decision:
    """The code cuts windows from pictures at their own size, which ours does not store."""
    theirs = "the window is cut from the original picture"
    return Decision("training pictures", theirs, source, ours=AT_256, verdict="differs", why=CUT_AT_256)


def centre_crop(size: int, source: str) -> Decision:
    """Test pictures are cut at their centre."""
    settings = {"augment.resize": 256, "augment.crop": size}
    return Decision("test pictures", f"shorter side 256, centre crop of {size}", source, settings)


def bgr(source: str) -> Decision:
    """Pictures are as the Caffe-derived weights expect."""
    ours = "BGR; blue and green are less 104 and 117"
    return Decision("channels", "BGR from 0 to 255, less (104, 117, 128)", source, {"model.red_mean": 128.0}, ours=ours)


def selected_on_test(theirs: str, source: str, epoch: str | None = None) -> Decision:
    """The code evaluates on test classes; `epoch` says which evaluation it prints, if that is stated."""
    settings: dict[str, Setting] = {"data.split": "paper_test_selection"}
    settings |= {"evaluation.epoch": epoch} if epoch else {}
    return Decision("published number", theirs, source, settings, ON_VALIDATION, "differs", _SELECTION)
