"""The device lab's room: runs bundles on a farm of phones and boards and keeps one record for each run.

It will hold targets, strategies, scenarios and drivers, and may import `toolkit` only. There is no code here yet.
"""
