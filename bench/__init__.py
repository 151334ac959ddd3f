"""How fast and how light Sublet is, beside what a user would do instead and beside the limit.

    python -m bench [startup|jobs|memory|pool|serving|connect ...] [--quick]

Each benchmark runs everything that it compares in one go on one machine, prints a table and
leaves a file in `results/`. Figures from different machines or different hours do not compare;
the ratios do.
"""
