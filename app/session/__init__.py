"""The log of one agent: what may be appended, who may append it, how it becomes durable and how it is repaired."""
