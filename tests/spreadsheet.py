"""Chapman's table of labels, for tests."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_spreadsheet(folder: Path, **rhythms: str) -> None:
    """A Diagnostics.xlsx with these rows, written as CSV-like cells by hand."""
    columns = ["FileName", "Rhythm", "Beat", "PatientAge", "Gender"]
    rows = [columns, *([name, rhythm, "NONE", "59", "FEMALE"] for name, rhythm in rhythms.items())]
    cells = "".join(
        f"<row r='{r}'>"
        + "".join(
            f"<c r='{'ABCDE'[c]}{r}' t='inlineStr'><is><t>{value}</t></is></c>"
            for c, value in enumerate(row)
        )
        + "</row>"
        for r, row in enumerate(rows, 1)
    )
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {
        "[Content_Types].xml": f"<Types xmlns='{package}/content-types'>"
        "<Default Extension='rels' ContentType='application/vnd.openxmlformats-package."
        "relationships+xml'/>"
        f"<Override PartName='/xl/workbook.xml' ContentType='{kind}.sheet.main+xml'/>"
        f"<Override PartName='/xl/sheet.xml' ContentType='{kind}.worksheet+xml'/></Types>",
        "_rels/.rels": f"<Relationships xmlns='{package}/relationships'><Relationship Id='r' "
        f"Type='{office}/officeDocument' Target='xl/workbook.xml'/></Relationships>",
        "xl/workbook.xml": f"<workbook xmlns='{main}' xmlns:r='{office}'><sheets>"
        "<sheet name='S' sheetId='1' r:id='r1'/></sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f"<Relationships xmlns='{package}/relationships'>"
        f"<Relationship Id='r1' Type='{office}/worksheet' Target='sheet.xml'/></Relationships>",
        "xl/sheet.xml": f"<worksheet xmlns='{main}'><sheetData>{cells}</sheetData></worksheet>",
    }
    with zipfile.ZipFile(folder / "Diagnostics.xlsx", "w") as book:
        for name, part in parts.items():
            book.writestr(name, "<?xml version='1.0' encoding='UTF-8'?>" + part)
