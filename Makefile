# Each target is a thin line over dev.py, which makes .venv when it has to.
.DEFAULT_GOAL := help
.PHONY: help demo test check conformance crash soak bench explain lock fmt services

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' Makefile | expand -t 18

demo: ## an agent is killed in the middle of a tool, and goes on
	@python3 dev.py demo

test: ## every test
	@python3 dev.py test

check: ## format, lint, types, walls, unit and architecture tests: fast, no services
	@python3 dev.py check

conformance: ## which scenarios tests cite, area by area, and which not yet
	@python3 dev.py conformance

crash: ## break everything on purpose, and count
	@python3 dev.py crash

soak: ## the same for hours; ended, it goes on where it was
	@python3 dev.py soak

bench: ## the benchmarks
	@python3 dev.py bench

explain: ## what is inside and outside each checkpoint, in this environment
	@python3 dev.py explain

lock: ## write requirements.lock anew (needs a package index)
	@python3 dev.py lock

fmt: ## format the code and mend what the linter can mend
	@python3 dev.py fmt

services: ## install what some tests need besides Python (root on Debian only)
	@python3 dev.py services
