import subprocess
import sys

import pytest

SCRIPT = """
import re
from converters.freed_memory import give_back_memory

def anonymous():
    return int(re.search(r"^Anonymous:\\s+(\\d+)", open("/proc/self/smaps_rollup").read(), re.M)[1]) >> 10

kept = []
for _ in range(2):
    texts = [bytes(3000) for _ in range(60000)]
    kept.append(texts[::3000])  # holds the heap's top, so that nothing is returned by itself
    del texts
before = anonymous()
give_back_memory()
print(before, anonymous())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 100, "must-fail twin: the allocator had kept it"
    assert after < before / 4
