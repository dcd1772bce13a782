"""When a session is made durable in the middle of a turn, and what happens after a failed request."""
