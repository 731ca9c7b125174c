"""Tables: results by algorithm and test domain, with standard errors and what they rest on; leaderboards."""

from shiftbed.tables.cells import AVERAGE
from shiftbed.tables.ensembles import averaged_weights, ensemble_grid, summed_logits
from shiftbed.tables.estimates import Estimate, paired_permutation_test, ranks, spearman
from shiftbed.tables.grids import FORMATS, Grid
from shiftbed.tables.leaderboards import Leaderboard, leaderboards, ranking_grid, ranking_score
from shiftbed.tables.making import as_csv, as_text, make_tables, read_tables, render, tables_of
from shiftbed.tables.rows import as_rows
from shiftbed.tables.spreads import (
    domain_summary,
    group_estimates,
    group_grid,
    improvements,
    spread_estimates,
    spread_grid,
    thirds,
    variance_grid,
    variances,
)
from shiftbed.tables.table import Table
from shiftbed.tables.views import boards_against, each_table, read_groups, view_tables

__all__ = [
    "AVERAGE",
    "FORMATS",
    "Estimate",
    "Grid",
    "Leaderboard",
    "Table",
    "as_csv",
    "as_rows",
    "as_text",
    "averaged_weights",
    "boards_against",
    "domain_summary",
    "each_table",
    "ensemble_grid",
    "group_estimates",
    "group_grid",
    "improvements",
    "leaderboards",
    "make_tables",
    "paired_permutation_test",
    "ranking_grid",
    "ranking_score",
    "ranks",
    "read_groups",
    "read_tables",
    "render",
    "spearman",
    "spread_estimates",
    "spread_grid",
    "summed_logits",
    "tables_of",
    "thirds",
    "variance_grid",
    "variances",
    "view_tables",
]
