"""Where a session is made durable: one backend a module, all keeping the same contract."""
