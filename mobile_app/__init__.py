"""The reference field app's room: a voice note becomes a report offline.

`voice-notes report` and its pipeline are here; screens, recorder and note store will be. May import `toolkit` only.
"""
