"""The `convert` command with the small target and verifier, for tests that need a process of their own.

Sources: `small`, `small-other` (other weights under the same name), `small-slow` (each stage takes 0.2 s).
"""

import sys
import time

import converters.cli
import converters.parts
from converters.parts import Parts
from tests.converters.small_model import SmallTarget, SmallVerifier, small_checkpoint, small_parts


def parts() -> Parts:
    from toolkit.cache import cache_directory

    is_slow, is_other = "small-slow" in sys.argv, "small-other" in sys.argv
    target = SmallTarget(before=lambda stage: time.sleep(0.2 if is_slow else 0))
    checkpoint = small_checkpoint(seed=2 if is_other else 1)
    return small_parts(cache_directory("convert"), target, verifier=SmallVerifier(), checkpoint=checkpoint)


if __name__ == "__main__":
    import converters.pipeline

    converters.pipeline.default_parts = parts
    raise SystemExit(converters.cli.main())
