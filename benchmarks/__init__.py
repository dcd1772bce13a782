"""Performance claims, as ratios against a floor measured in the same run. `python3 dev.py bench` runs them all."""
