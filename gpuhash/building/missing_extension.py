"""Why there is no extension to import: the package's folder is that of the sources, or was built for another Python."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def reason(package: str, search_path: list[str]) -> str:
    """What is wrong with a package that has no ``_core`` for this Python, and what to do, in one line.

    Parameters
    ----------
    package
        The folder that the package is imported from.
    search_path
        ``sys.path``: another entry may have the package that ``package`` hides.
    """
    here = Path(package).resolve()
    others = (Path(entry or ".", here.name).resolve() for entry in search_path)
    hidden = next((folder for folder in others if folder != here and _has_extension(folder)), None)
    built = sorted(path.name for path in here.glob("_core*.so"))
    if built:
        python = ".".join(map(str, sys.version_info[:2]))
        wrong = f"{here} has the extension of another Python ({', '.join(built)}), and this is Python {python}"
        advice = "install gpuhash with this Python's pip"
    else:
        wrong = f"{here} is gpuhash's source folder, which has no compiled extension"
        advice = "run 'pip install .' there and Python elsewhere or as 'python -P', or install by 'pip install -e .'"
    if hidden is not None:
        wrong += f", and hides the installed package, {hidden}"
        advice = "run Python in another folder or as 'python -P' (PYTHONSAFEPATH=1), or install by 'pip install -e .'"
    return f"{wrong}: {advice}"


def _has_extension(package: Path) -> bool:
    return any((package / f"_core{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)
