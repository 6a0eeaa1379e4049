"""``python -m gpuhash``: what this installation is and which devices it can use; ``--cmake-dir``: its CMake files."""

import argparse
from pathlib import Path

from . import _core


def describe() -> None:
    """Print version, platforms with their devices or why there are none, and build options."""
    build = _core.build_info()
    print(f"gpuhash {build['version']}")
    for name in _core.platform_names():
        devices = _core.platform_devices(name)
        print(f"\nplatform {name}: {len(devices) or 'no'} device{'' if len(devices) == 1 else 's'}")
        for index, description in enumerate(devices):
            print(f"  {name}:{index}  {description}")
        if not devices:
            print(f"  {_core.platform_unavailable_reason(name)}")
    print("\nbuild options")
    for option, value in build.items():
        if option != "version":
            print(f"  {option}: {value or 'none'}")


def main() -> None:
    """Say what this installation is, or the one thing that is asked for."""
    parser = argparse.ArgumentParser("python -m gpuhash", description="What this installation of gpuhash is.")
    parser.add_argument(
        "--cmake-dir", action="store_true", help="print the folder to give CMake as gpuhash_DIR, and nothing else"
    )
    if parser.parse_args().cmake_dir:
        # Beside the extension: in an editable install that is not where this file lies.
        print(Path(_core.__file__).resolve().parent / "cmake")
    else:
        describe()


if __name__ == "__main__":
    main()
