import numpy as np
import pytest

from converters.targets.libraries import installed_versions
from toolkit.errors import BackendUnavailableError


def test_versions_are_those_of_what_is_installed() -> None:
    assert installed_versions(["numpy"], target="mlx") == {"numpy": np.__version__}


def test_a_missing_library_is_named_with_the_extras_that_bring_it() -> None:
    with pytest.raises(BackendUnavailableError, match="the onnx target cannot be used here") as caught:
        installed_versions(["numpy", "no-such-distribution"], target="onnx", extra="convert,onnx")
    assert caught.value.why == "no-such-distribution is not installed"
    assert caught.value.fix == "pip install 'ondevice-toolkit[convert,onnx]'"
