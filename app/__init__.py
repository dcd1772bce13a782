"""What runs: the session log, the model and tool services, the loop that drives them, and the doors to them."""
