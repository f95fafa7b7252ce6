"""Colours of all figures by role, for light and dark pages.

Arms have the colours of Okabe and Ito, which people with common colour deficiencies can distinguish. They are darkened
or lightened to a contrast of 3:1 with the page. Series also differ in marker and dashes. Ordered values of a knob have
a ramp from blue to red.
"""

PALETTE: dict[str, tuple[str, str]] = {
    "ink": ("#17202a", "#e8ecf1"),
    "soft": ("#4d5a68", "#a9b4c0"),
    "grid": ("#e3e7ec", "#2f3742"),
    "rule": ("#8a96a3", "#7d8996"),
    "paper": ("#ffffff", "#14181d"),
    "mean": ("#00588c", "#6cbcf0"),
    "seed": ("#5e93b8", "#4f7f9f"),
    "margin": ("#8a96a3", "#8a96a3"),
    "base": ("#5f6b7a", "#a9b4c0"),
    "lost": ("#b14d00", "#ff9d5c"),
    "good": ("#00588c", "#6cbcf0"),
    "bad": ("#b14d00", "#ff9d5c"),
    "printed0": ("#b14d00", "#f0a15e"),
    "printed1": ("#8a3f77", "#dd9fcb"),
    "printed2": ("#00735a", "#48c6a3"),
    "printed3": ("#7a6200", "#dcbf4b"),
    "arm0": ("#0072b2", "#56b4e9"),
    "arm1": ("#c24e00", "#f28a3c"),
    "arm2": ("#007d5d", "#33c49b"),
    "arm3": ("#a3537f", "#e29cc3"),
    "arm4": ("#8f6a00", "#e6b93a"),
    "arm5": ("#5c4db1", "#a99bf0"),
    "arm6": ("#5f6b7a", "#a9b4c0"),
    "ramp0": ("#1f3f8f", "#7f9df2"),
    "ramp1": ("#1769a3", "#5cb2ec"),
    "ramp2": ("#007f86", "#3fc4c2"),
    "ramp3": ("#3f7d2b", "#8bc96f"),
    "ramp4": ("#8c7000", "#d8bd45"),
    "ramp5": ("#b35400", "#f5994d"),
    "ramp6": ("#a8323e", "#f58089"),
}
"""Colours of each role on a light and on a dark page."""

_ARMS = 7
RAMP = 7
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 3", "12 4")
SHAPES = ("circle", "square", "diamond", "triangle", "cross", "down", "circle")


def arm_colour(arm: int) -> str:
    """Return the colour role of an arm, by its index in the sweep."""
    return f"arm{arm % _ARMS}"


def series_colours(count: int, ordered: bool) -> list[str]:
    """Return colour roles for a knob's values: a ramp if they are ordered, else the roles of arms."""
    if not ordered:
        return [arm_colour(index) for index in range(count)]
    if count < 2:
        return ["ramp1"] * count
    return [f"ramp{round(index * (RAMP - 1) / (count - 1))}" for index in range(count)]


def css_variables(dark: bool) -> str:
    """Return the palette as CSS declarations."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in PALETTE.items())


def css_classes() -> str:
    """Return a CSS class per role that sets its colour."""
    return " ".join(f".k-{name} {{ color: var(--{name}); }}" for name in PALETTE)
