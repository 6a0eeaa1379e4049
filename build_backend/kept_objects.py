"""What one build leaves for the next."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keep_objects(source: Path, scikit_build: Path) -> None:
    """Makes scikit-build-core keep what it compiled before.

    It deletes CMake's cache with all objects when it lies in another folder than the last time; and pip unpacks it into
    a new one for each build. What has to go is what knows that folder: the cache, and what CMake found out about the
    compilers. Which objects are old is known to Ninja, by their commands and sources.

    Parameters
    ----------
    source
        The folder of the sources, with build folders in build/.
    scikit_build
        Where scikit-build-core lies now.
    """
    now = str(scikit_build)
    for state in source.glob("build/*/.skbuild-info.json"):
        try:
            known = json.loads(state.read_text(encoding="utf-8"))
            if known["source_dir"] != str(source.resolve()) or known["skbuild_path"] == now:
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of a build that was broken off: scikit-build-core begins anew
        (state.parent / "CMakeCache.txt").unlink(missing_ok=True)
        for found_out in (state.parent / "CMakeFiles").glob("[0-9]*.[0-9]*"):  # by CMake's version
            shutil.rmtree(found_out, ignore_errors=True)
        state.write_text(json.dumps({**known, "skbuild_path": now}), encoding="utf-8")


def need_build_folder(source: Path, config_settings: Mapping[str, Any] | None = None) -> None:
    """Ends with what to do, where nothing can be written into the source folder and no other build folder is named."""
    named = any(key.endswith("build-dir") for key in config_settings or {}) or "SKBUILD_BUILD_DIR" in os.environ
    folder = source / "build"
    if named or os.access(folder if folder.exists() else source, os.W_OK | os.X_OK):
        return
    raise SystemExit(
        f"gpuhash is compiled in {folder}, where you may not write: copy the sources, or name another folder by "
        "pip install --config-settings=build-dir=FOLDER"
    )
