"""What the hub's library raises, as errors a user can act on."""

from __future__ import annotations

from types import ModuleType

from toolkit.cache import LOCAL_ERRNOS, write_error
from toolkit.catalog import HfSource
from toolkit.errors import SourceUnavailableError, ToolkitError
from toolkit.sources.hub_cache import hub_cache


def is_network_failure(error: Exception, hub: ModuleType) -> bool:
    """Whether waiting or another try may help: no answer, a cut transfer, or a server error; never a refusal."""
    status = _status(error)
    if status is not None:
        return status >= 500
    if isinstance(error, OSError) and error.errno in LOCAL_ERRNOS:
        return False
    return isinstance(error, (OSError, hub.errors.HfHubHTTPError)) or type(error).__module__.split(".")[0] in ("httpx2", "httpcore2")


def translated(error: Exception, source: HfSource, hub: ModuleType, file_name: str | None = None) -> ToolkitError:
    """The error to raise instead. A gated page is a refusal that names the page; the unknown counts as 'unavailable'."""
    what = f"{source.uri} could not be fetched" + (f": {file_name}" if file_name else "")
    if isinstance(error, hub.errors.GatedRepoError):
        return SourceUnavailableError(
            f"{source.uri} is gated: its licence must be accepted on its page",
            why=f"the hub answered {_status(error)}: this account has no access",
            fix=f"accept it at https://huggingface.co/{source.repo}, then run: hf auth login",
        )
    if isinstance(error, OSError) and error.errno in LOCAL_ERRNOS:
        return write_error(hub_cache(), error, fix="make it writable, or set HF_HOME to another folder")
    why, fix = _cause(error, source, hub)
    return SourceUnavailableError(what, why=why, fix=fix)


def _cause(error: Exception, source: HfSource, hub: ModuleType) -> tuple[str, str]:
    if isinstance(error, hub.errors.RepositoryNotFoundError):
        return f"no such repository, or it is private ({_status(error)})", "check the name; if it is private: hf auth login"
    if _status(error) == 404:
        return f"the repository has no revision {source.revision!r} with it", "leave out @revision, or name a commit"
    if isinstance(error, hub.errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, and it is not in the cache", "unset HF_HUB_OFFLINE, or give a local directory"
    first_line = next(iter(str(error).splitlines()), "") or type(error).__name__
    fix = "check the network, then run the same command again: it goes on where it was"
    return f"the network or the hub failed: {first_line[:200]}", fix


def _status(error: Exception) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
