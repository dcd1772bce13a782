"""The turn: a loop over steps, the calls of a step, what listens after it, and the inbox that feeds it."""
