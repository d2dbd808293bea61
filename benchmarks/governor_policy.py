"""The governor's table on a simulated phone, beside no policy: tokens a joule, time above the severe limit, time to finish.

    python -m benchmarks.governor_policy [--policy FILE]

A deterministic simulation of a phone whose constants are partly published and partly chosen (`toolkit/thermal_simulation.py` says which):
it says how a policy behaves on such a phone, not how a phone behaves. The same run gives the same figures on every machine.
"""

from __future__ import annotations

import argparse

from benchmarks.harness import Report, Target, parser, run
from toolkit.governor import Governor
from toolkit.governor_policy import GovernorPolicy, load_policy
from toolkit.thermal_simulation import Outcome, Phone, SimulatedPhone, simulate

SHORT_TOKENS, LONG_TOKENS = 250, 20_000
LIMIT_S = 4 * 3600.0
ROOM, WARM, SUN, LOW = "24 °C", "28 °C", "36 °C, in the sun", "28 °C, battery at 22 %"
PLACES = {
    ROOM: Phone(ambient_c=24.0),
    WARM: Phone(ambient_c=28.0),
    SUN: Phone(ambient_c=36.0),
    LOW: Phone(ambient_c=28.0, battery_share=0.22),
}
WITHOUT, WITH = "no policy", "governor"
# What the table is for. It costs time and, because pauses are not free while a screen is on, joules: those have no target.
TARGETS = {
    (ROOM, LONG_TOKENS): Target("at most", 0.0),
    (WARM, LONG_TOKENS): Target("at most", 0.0),
}


def outcome(phone: Phone, tokens: int, policy: GovernorPolicy | None) -> Outcome:
    """One job on one phone."""

    def governor(simulated: SimulatedPhone) -> Governor:
        return Governor(policy, simulated.read, clock=simulated.clock, wall_clock=simulated.clock)

    return simulate(phone, tokens, None if policy is None else governor, limit_s=LIMIT_S)


def measure(args: argparse.Namespace) -> Report:
    """Run every job in every place, with and without the table."""
    policy = load_policy(args.policy)
    report = Report("governor_policy", {"policy": "the package's" if args.policy is None else "a file", "is_simulation": True})
    for place, phone in PLACES.items():
        for tokens in (SHORT_TOKENS, LONG_TOKENS):
            for side, chosen in ((WITHOUT, None), (WITH, policy)):
                result = outcome(phone, tokens, chosen)
                subject = f"{place}, {tokens} tokens, {side}"
                target = TARGETS.get((place, tokens)) if side == WITH else None
                report.add(subject, "over_severe_s", [result.over_severe_s], target)
                report.add(subject, "peak_body_c", [result.peak_body_c])
                report.add(subject, "tokens_per_j", [result.tokens_per_j])
                report.add(subject, "finish_s" if result.is_finished else "until_given_up_s", [result.seconds])
                report.add(subject, "done_share", [min(1.0, result.tokens / tokens)])
                report.details[subject] = [event.as_dict() | {"at_s": event.at_s} for event in result.events]
    return report


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("--policy", metavar="FILE", help="judge a table of your own (default: the one of the package)")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
