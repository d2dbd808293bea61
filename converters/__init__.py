"""Desktop and CI: a checkpoint becomes a verified bundle. May import toolkit, never the app or the device lab."""
