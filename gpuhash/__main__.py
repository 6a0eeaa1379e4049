"""``python -m gpuhash``: what this installation is and which devices it can use."""

from . import _core


def main() -> None:
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


if __name__ == "__main__":
    main()
