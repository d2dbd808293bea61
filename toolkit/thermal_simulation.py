"""A phone in figures: two heat capacities, a battery, and a system that throttles. Judges a governor's policy; it is not a phone.

Heat flows from the chip into the body and from there into the air (two resistances, two capacities, Newton's law of cooling). The system
slows the chip down by the body's temperature, as phones do, whether or not the app has a governor of its own.

Where the figures come from:
- SKIN_LIMITS_C, SKIN_HYSTERESIS_C: `VIRTUAL-SKIN` of `thermal_info_config.json` on Google's Pixel phones.
- HEADROOM_SPAN_C: `ThermalManagerService` of Android, which maps the 30 °C below the severe limit to 0..1.
- `throttled_share`: an iPhone 16 Pro keeps about half of its tokens a second under sustained load (Tummalapalli et al., "LLM Inference at
  the Edge", arXiv 2603.23640, 2026).
- `chip_time_constant_s`: 6 to 9 s for the CPU of a Galaxy S25+, as published by the author of a thermal predictor for it.
- All else is chosen, not measured: watts, resistances, body, battery, tokens a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from toolkit.governor import Governor, GovernorEvent, GovernorState
from toolkit.power.reading import Reading

SKIN_LIMITS_C = (39.0, 43.0, 45.0, 46.5, 52.0, 55.0)  # light, moderate, severe, critical, emergency, shutdown
SKIN_HYSTERESIS_C = 1.9
HEADROOM_SPAN_C = 30.0
SEVERE, SHUTDOWN = 3, 6
STEP_S = 0.1


@dataclass(frozen=True)
class Phone:
    """One phone in one place.

    Args:
        ambient_c: Air around it.
        idle_power_w: Screen and system.
        decode_power_w: The chip's, beside that, while it decodes at full speed.
        decode_tokens_per_s: At full speed.
        throttled_share: Of that speed, once the system throttles (severe and beyond).
        chip_to_body_k_per_w, body_to_air_k_per_w: Heat resistances.
        chip_time_constant_s: How fast the chip follows its power.
        body_j_per_k: Heat the body takes for each degree.
        battery_j: When full. 16 Wh.
        battery_share: At the beginning.
    """

    ambient_c: float = 28.0
    idle_power_w: float = 1.0
    decode_power_w: float = 5.0
    decode_tokens_per_s: float = 12.0
    throttled_share: float = 0.5
    chip_to_body_k_per_w: float = 6.0
    body_to_air_k_per_w: float = 6.0
    chip_time_constant_s: float = 8.0
    body_j_per_k: float = 100.0
    battery_j: float = 16 * 3600.0
    battery_share: float = 0.8


@dataclass
class Outcome:
    """What a job cost.

    Args:
        tokens: Decoded.
        seconds: Until it was done or given up.
        energy_j: Of the whole phone.
        over_severe_s: With a body at the severe limit or above.
        peak_body_c: Its highest temperature.
        is_finished: All tokens were decoded.
        events: Of the governor.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    energy_j: float = 0.0
    over_severe_s: float = 0.0
    peak_body_c: float = 0.0
    is_finished: bool = False
    events: tuple[GovernorEvent, ...] = field(default=())

    @property
    def tokens_per_j(self) -> float:
        """Of all the energy the phone used meanwhile."""
        return self.tokens / self.energy_j if self.energy_j else 0.0


class SimulatedPhone:
    """The state of a phone as time passes."""

    def __init__(self, phone: Phone) -> None:
        self.phone, self.now = phone, 0.0
        self.chip_c = self.body_c = phone.ambient_c
        self.left_j = phone.battery_share * phone.battery_j
        self.status = 0

    @property
    def is_off(self) -> bool:
        """The battery is empty, or the system shut down to save itself."""
        return self.left_j <= 0 or self.status >= SHUTDOWN

    def clock(self) -> float:
        """Its own seconds."""
        return self.now

    def read(self) -> Reading:
        """What its system tells an app."""
        severe = SKIN_LIMITS_C[SEVERE - 1]
        headroom = max(0.0, 1 + (self.body_c - severe) / HEADROOM_SPAN_C)
        share = max(0.0, self.left_j / self.phone.battery_j)
        return Reading(battery_share=share, is_plugged=False, thermal_status=self.status, thermal_headroom=headroom)

    def step(self, is_decoding: bool) -> tuple[float, float]:
        """One step of time; returns the tokens decoded and the joules used.

        At a share s of the clock the chip takes s^2 of the power: between s, where only the clock falls, and s^3, where the voltage
        falls as much.
        """
        phone = self.phone
        speed = (phone.throttled_share if self.status >= SEVERE else 1.0) if is_decoding else 0.0
        chip_w = phone.decode_power_w * speed**2
        flow_w = (self.chip_c - self.body_c) / phone.chip_to_body_k_per_w
        chip_j_per_k = phone.chip_time_constant_s / phone.chip_to_body_k_per_w
        out_w = (self.body_c - phone.ambient_c) / phone.body_to_air_k_per_w
        self.chip_c += (chip_w - flow_w) * STEP_S / chip_j_per_k
        self.body_c += (flow_w + phone.idle_power_w - out_w) * STEP_S / phone.body_j_per_k
        used_j = (chip_w + phone.idle_power_w) * STEP_S
        self.left_j -= used_j
        self.now += STEP_S
        self._judge()
        return phone.decode_tokens_per_s * speed * STEP_S, used_j

    def _judge(self) -> None:
        reached = sum(self.body_c >= limit for limit in SKIN_LIMITS_C)
        if reached < self.status:
            reached = max(reached, sum(self.body_c >= limit - SKIN_HYSTERESIS_C for limit in SKIN_LIMITS_C[: self.status]))
        self.status = reached


def simulate(phone: Phone, tokens: int, make_governor: Callable[[SimulatedPhone], Governor] | None = None, *, limit_s: float) -> Outcome:
    """Decode `tokens` on a phone; deterministic.

    Args:
        phone: At its beginning, as warm as the air.
        tokens: The job.
        make_governor: Gives the governor of a simulated phone, from its `read` and `clock`; None: no policy.
        limit_s: When to give up.
    """
    simulated, outcome = SimulatedPhone(phone), Outcome()
    governor = None if make_governor is None else make_governor(simulated)
    allowance = 0.0
    while outcome.tokens < tokens and simulated.now < limit_s and not simulated.is_off:
        state = GovernorState.FULL if governor is None else governor.poll()
        if state is GovernorState.STOP:
            break
        # As much time as the duty share allows, in whole steps: what is left over counts for the next.
        share = 0.0 if state is GovernorState.PAUSE else 1.0 if governor is None else governor.actions.duty_share
        allowance = allowance + share if share else 0.0
        is_decoding = allowance >= 1.0 - 1e-9
        allowance -= is_decoding
        made, used_j = simulated.step(is_decoding)
        outcome.tokens += made
        outcome.energy_j += used_j
        outcome.over_severe_s += STEP_S * (simulated.body_c >= SKIN_LIMITS_C[SEVERE - 1])
        outcome.peak_body_c = max(outcome.peak_body_c, simulated.body_c)
    outcome.seconds, outcome.is_finished = simulated.now, outcome.tokens >= tokens
    outcome.events = () if governor is None else governor.events
    return outcome
