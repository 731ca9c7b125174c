"""Commands about data, algorithms and recipes: what there is."""

import json
import os
import warnings
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable

from shiftbed.cli.shared import (
    SHOWN_FAILURES,
    AsJson,
    Code,
    SkipCorrupt,
    app,
    console,
    load_classes,
    next_command,
    say,
    stoppable,
    with_files,
    word,
)
from shiftbed.errors import ShiftbedError, plural


@app.command()
def datasets(
    name: Annotated[str | None, typer.Argument(help="Show this dataset's card.")] = None, as_json: AsJson = False
) -> None:
    """The datasets there are, or the card of one."""
    from shiftbed.data import DATASETS, card
    from shiftbed.data.roots import prepared_names
    from shiftbed.report import show

    names = [name] if name else sorted({*DATASETS, *prepared_names()})
    cards = [card(one) for one in names]
    if as_json:
        print(json.dumps([one.model_dump() for one in cards]))
    elif name:
        console.print(show.card_table(cards[0]))
        is_here = cards[0].ran_on == "built in" or cards[0].name in prepared_names()
        next_command(f"shiftbed {'look' if is_here else 'prepare'} {word(cards[0].name)}")
    else:
        console.print(show.dataset_table(cards))
        next_command(f"shiftbed datasets {word(cards[0].name)}", "shiftbed look EmojiStyles")


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="A known dataset, or a folder domain/class/image, or a manifest.")],
    source: Annotated[Path | None, typer.Option("--from", help="Where its archive or folder already is.")] = None,
    rename: Annotated[str | None, typer.Option("--name", help="The name of your own dataset.")] = None,
    size: Annotated[int | None, typer.Option(min=2, help="Reduce images to this short side.")] = None,
    size_class: Annotated[str | None, typer.Option(help="small or large: which hyperparameters apply.")] = None,
    skip_corrupt: SkipCorrupt = False,
    root: Annotated[Path | None, typer.Option(help="The data root, instead of what SHIFTBED_DATA names.")] = None,
    as_json: AsJson = False,
) -> None:
    """Checks and packs a dataset, known or your own.

    Afterwards every command finds it by name.
    """
    from shiftbed.data.pack import REFUSED
    from shiftbed.data.prepare import prepare as run_prepare
    from shiftbed.data.roots import VARIABLE, pack_folder
    from shiftbed.report.live import work_bar

    if root is not None:
        os.environ[VARIABLE] = str(root.expanduser().resolve())

    def run() -> Any:
        with work_bar(console) as on_progress, warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", UserWarning)
            made = run_prepare(
                name,
                source,
                rename=rename,
                short_side=size,
                size_class=size_class,
                skip_corrupt=skip_corrupt,
                on_progress=on_progress,
            )
        for note in [] if as_json else notes:
            say(str(note.message))
        return made

    made = stoppable(run, "the same command")
    if as_json:
        left_out = [{"path": str(bad.path), "why": bad.why} for bad in made.left_out]
        duplicates = [[str(one.path) for one in same] for same in made.duplicates]
        found = {"card": made.card.model_dump(), "pack": str(pack_folder(made.card.name))}
        print(json.dumps({**found, "left_out": left_out, "duplicates": duplicates}))
        return
    counts = ", ".join(f"{domain} {count:,}" for domain, count in made.card.domains.items())
    own = made.card.ran_on == "own"
    summary = f"{sum(made.card.domains.values()):,} {made.card.summary}" if own else made.card.summary
    say(f"{made.card.name}: {summary} ({counts}).")
    if own:
        console.print(f"Hyperparameters for {made.card.size_class} images apply; --size-class changes that.")
    for bad in made.left_out[:SHOWN_FAILURES]:
        say(f"left out: {bad.path}: {bad.why}")
    if len(made.left_out) > SHOWN_FAILURES:
        listed = pack_folder(made.card.name) / REFUSED
        say(f"{len(made.left_out)} images were left out; all are listed in {listed}.")
    if made.duplicates:
        example = " = ".join(str(one.path) for one in made.duplicates[0][:2])
        images = plural(len(made.duplicates), "image") + (" lies" if len(made.duplicates) == 1 else " lie")
        words = f"{images} in more than one domain or official part, for example {example}."
        say(words)
    name, domain = quote(made.card.name), quote(next(iter(made.card.domains)))
    several = len(made.card.domains) > 1
    if root is not None:
        say(f"Other commands find it with `export {VARIABLE}={word(os.environ[VARIABLE])}`.")
    next_command(f"shiftbed look {name}", *([f"shiftbed train {name} ERM --test {domain}"] if several else []))


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show all of this algorithm.")] = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """The algorithms there are, with their own hyperparameters, or all that is known of one."""
    from shiftbed.algorithms import ALGORITHMS
    from shiftbed.report import show

    load_classes(code)
    if as_json:
        entries = {one: ALGORITHMS[one] for one in ([ALGORITHMS.canonical_name(name)] if name else ALGORITHMS)}
        rows = [
            {"name": name, "paper": e.paper, "needs": e.needs, "selection": e.selection, "hparams": list(e.space())}
            for name, e in entries.items()
        ]
        print(json.dumps(rows))
    elif name:
        console.print(show.algorithm_card(name))
        which = word(ALGORITHMS.canonical_name(name)) + with_files(code)
        next_command(f"shiftbed hparams {which}", f"shiftbed train EmojiStyles {which} --test noto")
    else:
        console.print(show.algorithm_table())
        next_command("shiftbed algorithms ERM", "shiftbed train EmojiStyles ERM --test noto")


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show all of this recipe, or of a file of yours.")] = None,
    dataset: Annotated[str, typer.Option(help="As it is for this dataset; by default for large images.")] = "",
    as_json: AsJson = False,
) -> None:
    """The recipes there are, which say how models are trained, or all of one."""
    from shiftbed.data import card
    from shiftbed.report import show
    from shiftbed.training.recipes import recipe, recipe_names

    known = card(dataset).name if dataset else ""
    if as_json:
        print(json.dumps([recipe(one, known).model_dump() for one in ([name] if name else recipe_names())]))
        return
    if name:
        console.print(show.recipe_card(name, known))
        where = known or "EmojiStyles"
        test = word(next(iter(card(where).domains)))
        next_command(f"shiftbed train {word(where)} ERM --test {test} --recipe {word(name)}")
        return
    table = RichTable("recipe", "network", "steps", "what it is for")
    table.columns[0].no_wrap, table.columns[1].overflow, table.columns[2].justify = True, "fold", "right"
    for one in (recipe(each, known) for each in recipe_names()):
        table.add_row(one.name, one.network, f"{one.steps:,}", one.summary)
    console.print(table)
    next_command("shiftbed recipes quick", "shiftbed train EmojiStyles ERM --test noto --recipe quick")


@app.command()
def look(
    dataset: Annotated[str, typer.Argument(help="The dataset's name.")],
    out: Annotated[Path | None, typer.Option(help="The PNG file to write.")] = None,
) -> None:
    """A contact sheet of a dataset: domains by classes, as a PNG."""
    from shiftbed.data import card
    from shiftbed.data.look import look as run

    print(run(dataset, out))
    name = card(dataset).name
    next_command(f"shiftbed train {word(name)} ERM --test {word(next(iter(card(name).domains)))}")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Shows what this installation has: versions, devices, data root and disk."""
    from shiftbed.report.doctor import examine

    if as_json:
        print(json.dumps(dict(examine())))
        return
    table = RichTable(show_header=False)
    for what, found in examine():
        table.add_row(what, found)
    console.print(table)
    next_command("shiftbed demo")


@app.command()
def hparams(
    algorithm: Annotated[str, typer.Argument(help="The algorithm's name.")],
    dataset: Annotated[str, typer.Option(help="The dataset: some ranges depend on it.")] = "EmojiStyles",
    draw: Annotated[
        int | None, typer.Option(min=0, help="Show the values of this draw; 0 is the default values.")
    ] = None,
    trial: Annotated[int, typer.Option(min=0, help="The repetition; each draws anew.")] = 0,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe, which may fix some of them; by default quick.")
    ] = None,
    space: Annotated[str | None, typer.Option(help="A named search space as it is, instead of a recipe.")] = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """The hyperparameters of an algorithm: their ranges, or the values of a draw."""
    from shiftbed.data import card
    from shiftbed.training.job import search_space
    from shiftbed.training.recipes import recipe as find_recipe

    if recipe and space:
        raise ShiftbedError("A recipe has a search space of its own; give --recipe or --space, not both.")
    load_classes(code)
    how = None if space else find_recipe(recipe or "quick", card(dataset).name)
    priors = search_space(algorithm, dataset, how.space if how else str(space))
    fixed = {name: value for name, value in how.fixed.items() if name in priors} if how else {}
    values = {**priors.draw(draw or 0, trial), **fixed}
    if as_json:
        print(json.dumps(values))
        return
    table = RichTable("hyperparameter", "default" if draw is None else f"draw {draw}, trial {trial}", "drawn from")
    for name, prior in priors.items():
        value = values[name]
        origin = f"fixed by recipe {how.name}" if how and name in fixed else prior.text
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value), origin)
    console.print(table)
    trained_by = recipe or how.name if how else _recipe_with(values, algorithm, dataset, draw or 0, trial)
    if trained_by is None:
        next_command("shiftbed recipes")
        return
    domain = next(iter(card(dataset).domains))
    what = f"{word(dataset)} {word(algorithm)} --test={word(domain)} --recipe {word(trained_by)}"
    which = f"--draw {draw or 0}{f' --trial {trial}' if trial else ''}"
    next_command(f"shiftbed train {what} {which}{with_files(code)}")


def _recipe_with(values: dict[str, Any], algorithm: str, dataset: str, draw: int, trial: int) -> str | None:
    """The first recipe that trains a draw with these values, or None."""
    from shiftbed.training.job import resolve_hparams
    from shiftbed.training.recipes import recipe, recipe_names

    def trained(name: str) -> dict[str, Any]:
        return resolve_hparams(dataset, algorithm, recipe(name, dataset), draw, trial, {})

    return next((name for name in recipe_names() if trained(name) == values), None)
