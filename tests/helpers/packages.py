"""Write a package of methods as `pip install -e .` installs it: modules and entry points."""


def write_package(folder, offers, **modules):
    """Write modules, given as name=text, and entry points of losses (`name = module:Class`), for PYTHONPATH."""
    named = folder / "own_dml.egg-info"
    named.mkdir(parents=True)
    (named / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: own-dml\nVersion: 1.0\n")
    (named / "entry_points.txt").write_text(f"[tune_dml.losses]\n{offers}\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
