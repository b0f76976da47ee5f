"""HTTP plumbing that the explorer and the service share: connections, tokens, uploads."""

from importlib.util import find_spec

from clocs.errors import SettingError, with_extra


def expect_installed(command: str, extra: str, modules: tuple[str, ...]) -> None:
    """Say which packages a command needs that are not installed."""
    if missing := ", ".join(one for one in modules if find_spec(one) is None):
        raise SettingError(
            f"`clocs {command}` needs {missing}, which is not installed; {with_extra(extra)}"
        )
