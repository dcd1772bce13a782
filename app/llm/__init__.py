"""Asking a model: one service, one adapter for each vendor's wire, and the stream between them."""
