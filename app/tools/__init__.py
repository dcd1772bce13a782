"""Acting on the world: tools from plain functions, and the pipeline that decides whether a body runs."""
