"""Every source this platform has, asked together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from toolkit.device.profile import system_name
from toolkit.free_memory import ROOT
from toolkit.power.reading import Reading, merged

_LOG = logging.getLogger(__name__)
Reader = Callable[[], Reading]


def device_readers(root: Path = ROOT, system: str | None = None) -> tuple[Reader, ...]:
    """The readers of a platform.

    Args:
        root: Where `proc` and `sys` are; a test gives a folder of its own.
        system: One of the words of `Device.system`; None: this one's.
    """
    system = system or system_name()
    if system == "android":
        from toolkit.android import app_context
        from toolkit.power.android import AndroidReader
        from toolkit.power.pressure import read_pressure

        context = app_context()  # here, because a thread that Java did not make finds none of the app's own classes
        return (AndroidReader(lambda: context), partial(read_pressure, root))
    if system == "ios":
        from toolkit.power.apple import read_ios_battery, read_process_info

        return (read_process_info, read_ios_battery)
    if system == "darwin":
        from toolkit.power.apple import read_mac_battery, read_process_info

        return (read_process_info, read_mac_battery)
    if system == "linux":
        from toolkit.power.battery import read_battery
        from toolkit.power.pressure import read_pressure
        from toolkit.power.thermal import read_thermal

        return (partial(read_battery, root), partial(read_thermal, root), partial(read_pressure, root))
    return ()


class DeviceReader:
    """Asks all readers. One that fails, against its contract, is named once in the log and tells nothing from then on."""

    def __init__(self, readers: Sequence[Reader] | None = None) -> None:
        """`readers` None: those of this platform."""
        self._readers = list(device_readers() if readers is None else readers)

    def __call__(self) -> Reading:
        readings = []
        for reader in list(self._readers):
            try:
                readings.append(reader())
            except Exception:  # an answer must not fail because a thermometer did
                self._readers.remove(reader)
                _LOG.warning("%s cannot be read and is left out", _name_of(reader), exc_info=_LOG.isEnabledFor(logging.DEBUG))
        return merged(readings)


def _name_of(reader: Reader) -> str:
    inner = reader.func if isinstance(reader, partial) else reader
    return getattr(inner, "__qualname__", type(inner).__qualname__)


def read_device(root: Path = ROOT) -> Reading:
    """What this device tells at this moment."""
    return DeviceReader(device_readers(root))()
