"""Tables: results by algorithm and test domain, with standard errors and what they rest on; leaderboards."""

from shiftbed.tables.estimates import Comparison, Estimate, paired_permutation_test, ranks, spearman
from shiftbed.tables.grids import FORMATS, Grid
from shiftbed.tables.leaderboards import Leaderboard, leaderboards, ranking_grid, ranking_score
from shiftbed.tables.making import as_csv, as_text, make_tables, read_tables, render, tables_of
from shiftbed.tables.spreads import domain_summary, group_grid, improvements, spread_grid, thirds, variance_grid
from shiftbed.tables.table import AVERAGE, OVERALL, Table, as_rows

__all__ = [
    "AVERAGE",
    "FORMATS",
    "OVERALL",
    "Comparison",
    "Estimate",
    "Grid",
    "Leaderboard",
    "Table",
    "as_csv",
    "as_rows",
    "as_text",
    "domain_summary",
    "group_grid",
    "improvements",
    "leaderboards",
    "make_tables",
    "paired_permutation_test",
    "ranking_grid",
    "ranking_score",
    "ranks",
    "read_tables",
    "render",
    "spearman",
    "spread_grid",
    "tables_of",
    "thirds",
    "variance_grid",
]
