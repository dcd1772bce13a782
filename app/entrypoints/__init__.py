"""The doors: each receives the built application and asks it; nothing here decides how a turn goes."""
