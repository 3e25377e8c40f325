"""The built-in tasks of the desktop, checked by files, clipboard and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.envs.gui.desktop._tasks import (
    Check,
    ClipboardStep,
    DesktopRecord,
    LaunchStep,
    WriteStep,
)

if TYPE_CHECKING:
    from trajgym.trajectory import Task

__all__ = ["builtin_tasks"]

_HOME = "/home/agent"
_LETTER = "The colour of the harbour is grey.\nEvery colour fades.\n"
_CALC = ["localc", "--norestore", "--nologo"]
_NAMES = "".join(
    f' xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for name in ("office", "table", "text")
)
_ROWS = "".join(
    f'<table:table-row><table:table-cell office:value-type="string"><text:p>{item}</text:p>'
    f'</table:table-cell><table:table-cell office:value-type="float" office:value="{price}"/>'
    "</table:table-row>"
    for item, price in (("Bread", 3.25), ("Milk", 1.5))
)
# LibreOffice recognises the type by these attributes in double quotes.
_SHEET = (
    f'<?xml version="1.0" encoding="UTF-8"?><office:document{_NAMES} office:version="1.3" '
    'office:mimetype="application/vnd.oasis.opendocument.spreadsheet"><office:body>'
    f'<office:spreadsheet><table:table table:name="Prices">{_ROWS}</table:table>'
    "</office:spreadsheet></office:body></office:document>"
)
_RECORDS: dict[str, DesktopRecord] = {
    "shopping-list": DesktopRecord(
        instruction="Add the line 'eggs' at the end of the list that is open, and save it.",
        setup=[
            WriteStep(path=f"{_HOME}/shopping.txt", text="milk\nbread\n"),
            LaunchStep(command=["mousepad", f"{_HOME}/shopping.txt"]),
        ],
        checks=[
            Check(
                of="file",
                name=f"{_HOME}/shopping.txt",
                one_of=["milk\nbread\neggs\n", "milk\nbread\neggs"],
            )
        ],
    ),
    "spelling": DesktopRecord(
        instruction="In the letter that is open, write 'color' instead of 'colour' everywhere, "
        "change nothing else, and save it.",
        setup=[
            WriteStep(path=f"{_HOME}/letter.txt", text=_LETTER),
            LaunchStep(command=["mousepad", f"{_HOME}/letter.txt"]),
        ],
        checks=[
            Check(
                of="file",
                name=f"{_HOME}/letter.txt",
                equals=_LETTER.replace("colour", "color"),
            )
        ],
    ),
    "rename": DesktopRecord(
        instruction="Rename the file draft.txt in the folder that is open to final.txt.",
        setup=[
            WriteStep(path=f"{_HOME}/Reports/draft.txt", text="Figures of the quarter.\n"),
            LaunchStep(command=["pcmanfm", f"{_HOME}/Reports"]),
        ],
        checks=[
            Check(of="file", name=f"{_HOME}/Reports/draft.txt", exists=False),
            Check(of="file", name=f"{_HOME}/Reports/final.txt", equals="Figures of the quarter.\n"),
        ],
    ),
    "product": DesktopRecord(
        instruction="Work out 37 times 43 with the calculator and copy the result to the "
        "clipboard.",
        setup=[LaunchStep(command=["galculator"])],
        checks=[Check(of="clipboard", equals="1591")],
    ),
    "logs": DesktopRecord(
        instruction="Use the terminal to move both .log files of the home folder into a new "
        "folder named old.",
        setup=[
            WriteStep(path=f"{_HOME}/monday.log", text="1\n"),
            WriteStep(path=f"{_HOME}/tuesday.log", text="2\n"),
            WriteStep(path=f"{_HOME}/keep.txt", text="3\n"),
            LaunchStep(command=["xterm"]),
        ],
        checks=[
            Check(of="command", name="cd ~ && ls old", equals="monday.log\ntuesday.log\n"),
            Check(of="command", name="cd ~ && ls *.log 2>&1", contains=["No such file"]),
            Check(of="file", name=f"{_HOME}/keep.txt", exists=True),
        ],
    ),
    "paste": DesktopRecord(
        instruction="Paste what is on the clipboard into the empty text file that is open, save "
        "it, and close the editor.",
        setup=[
            WriteStep(path=f"{_HOME}/quote.txt", text=""),
            LaunchStep(command=["mousepad", f"{_HOME}/quote.txt"]),
            ClipboardStep(text="Füße über Ærø: 3 €"),
        ],
        checks=[
            Check(of="file", name=f"{_HOME}/quote.txt", contains=["Füße über Ærø: 3 €"]),
            Check(of="windows", lacks=["Mousepad"]),
        ],
    ),
    "budget": DesktopRecord(
        instruction="In the spreadsheet that is open, put the sum of the prices into the cell "
        "below them, as a formula, and save it.",
        setup=[
            WriteStep(path=f"{_HOME}/budget.fods", text=_SHEET),
            LaunchStep(command=[*_CALC, f"{_HOME}/budget.fods"], seconds=120, title="budget.fods"),
        ],
        checks=[
            Check(
                of="file",
                name=f"{_HOME}/budget.fods",
                contains=['table:formula="of:=', 'office:value="4.75"'],
            )
        ],
    ),
    "eject": DesktopRecord(
        instruction="Eject the CD that is in the drive. If that can't be done here, give up.",
        infeasible=True,
    ),
}


def builtin_tasks() -> list[Task]:
    """Return the tasks, in order of difficulty."""
    return [record.task(name) for name, record in _RECORDS.items()]
