"""The reference field app's room: a Kivy app that turns a voice note into a report offline.

It will hold screens, recorder, note store and report pipeline, and may import `toolkit` only. There is no code here yet.
"""
