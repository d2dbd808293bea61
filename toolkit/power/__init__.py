"""What the device itself tells of battery, heat and shortage: one small reader a source, none of which ever raises.

`toolkit.power.sources.read_device` asks all that this platform has. A reader returns a `Reading` with what it can tell; None stands for
what it cannot. Adding a source is a module here and a line in `sources.py`.
"""
