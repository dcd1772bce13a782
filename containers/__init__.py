"""With what, and in which order: settings in, one built application out."""
