"""What `shiftbed --help` shows: all commands, in the order in which a person meets them."""

from typing import Any

from typer.core import TyperGroup

SECTIONS = {
    "Start": ("demo", "doctor"),
    "What there is": ("datasets", "algorithms", "hparams", "recipes", "benchmarks", "figures"),
    "Data": ("prepare", "look", "shift"),
    "Training": ("train", "sweep", "status", "benchmark"),
    "Results": ("tables", "report", "figure", "audit", "unblind", "diff"),
    "Models": ("best", "predictions", "predict", "accuracy"),
    "Folders of sweeps": ("compact", "bundle", "merge", "import-domainbed", "export-domainbed"),
}


class Commands(TyperGroup):
    """The commands by what they are for, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes one list a section."""
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), _first_sentence(self.commands[name].help)) for name in names])


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split()).removesuffix(".")
