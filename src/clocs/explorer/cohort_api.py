"""The endpoints of groups of patients: saved cohorts, comparisons, average beats, exports."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path, Response
from pydantic import BaseModel, Field

from clocs.errors import SettingError
from clocs.explorer import cohorts
from clocs.explorer.average_beats import average_beats
from clocs.explorer.group_comparison import compare
from clocs.explorer.session import Session
from clocs.files import csv_text
from clocs.patients.cohort import cohort_text

Code = Annotated[str, Field(pattern="^[0-9a-f]{10}$")]
Codes = Annotated[list[Code], Field(min_length=1, max_length=2_000_000)]
Name = Annotated[str, Path(max_length=200, description="A cohort's name.")]


class Group(BaseModel):
    codes: Codes  # pseudonyms


class TwoGroups(BaseModel):
    first: Codes
    second: Codes


class NewCohort(Group):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    replace: bool = False  # a cohort of this name


class CohortFacts(BaseModel):
    name: str
    patients: int  # of this session
    elsewhere: int  # who are not in this session
    saved: str | None  # when, as ISO 8601
    problem: str | None


class SavedCohort(BaseModel):
    name: str
    codes: list[str]
    elsewhere: int
    file: str  # for `clocs` commands


class ShareFacts(BaseModel):
    count: int
    of: int  # patients in whom it is known
    share: float | None
    low: float  # Wilson's 95 % interval
    high: float


class ShareRow(BaseModel):
    value: str
    shares: list[ShareFacts]  # one per group


class ShareSection(BaseModel):
    title: str
    rows: list[ShareRow]


class MeanFacts(BaseModel):
    mean: float
    low: float | None  # of the normal 95 % interval
    high: float | None
    known: int


class MeanRow(BaseModel):
    title: str
    unit: str
    groups: list[MeanFacts | None]


class Comparison(BaseModel):
    patients: list[int]
    in_both: int
    means: list[MeanRow]
    sections: list[ShareSection]


class LeadBeat(BaseModel):
    lead: str
    patients: int
    mean: list[float]
    low: list[float]  # of the mean's pointwise 95 % interval
    high: list[float]


class AverageBeats(BaseModel):
    unit: str
    rate: int  # Hz
    start: float  # s, relative to the QRS complex
    patients: int  # averaged
    of: int
    leads: list[LeadBeat]


def add_cohorts(app: FastAPI, session: Session) -> None:
    """Add the endpoints."""

    @app.get("/api/cohorts")
    def saved() -> list[CohortFacts]:
        """The saved cohorts."""
        return [CohortFacts.model_validate(one) for one in cohorts.listed(session)]

    @app.post("/api/cohorts", status_code=201)
    def save(new: NewCohort) -> SavedCohort:
        """Save patients under a name; 409 where it is taken, unless to replace that cohort."""
        made = cohorts.save(session, new.name, new.codes, replace=new.replace)
        return SavedCohort.model_validate(made)

    @app.get("/api/cohorts/{name}")
    def cohort(name: Name) -> SavedCohort:
        """The patients of a saved cohort."""
        return SavedCohort.model_validate(cohorts.saved_cohort(session, name))

    @app.post("/api/groups/comparison")
    def comparison(groups: TwoGroups) -> Comparison:
        """Two groups in shares and means, with 95 % intervals."""
        return Comparison.model_validate(compare(session, [groups.first, groups.second]))

    @app.post("/api/groups/beats")
    def beats(group: Group) -> AverageBeats:
        """The average beat of a group, lead by lead."""
        return AverageBeats.model_validate(average_beats(session, group.codes))

    @app.post("/api/groups/table", response_class=Response)
    def table(group: Group) -> Response:
        """A group as CSV, one row per patient."""
        return _csv(_table(session, group.codes))

    @app.post("/api/groups/ids", response_class=Response)
    def ids(group: Group) -> Response:
        """A group's IDs as CSV, as `clocs` commands take them; only where IDs are shown."""
        if not session.show_ids:
            raise SettingError(
                "IDs are not shown here; save the group, and its file on this machine has them, or "
                "start the explorer with `show_ids`"
            )
        return _csv(cohort_text(cohorts.ids_of(session, group.codes)))


def _table(session: Session, codes: list[str]) -> str:
    """With IDs as column `patient` where they are shown."""
    who = ("patient",) if session.show_ids else ("code",)
    columns = ("dataset", *who, "labels", *(("split",) if session.show_ids else ()))
    columns += ("age", "sex", "heart_rate")
    rows = [session.summary(row) for row in sorted({session.row(code) for code in codes})]
    listed = [one | {"patient": one["name"]} for one in rows]
    return csv_text(columns, ([one[name] for name in columns] for one in listed))


def _csv(text: str) -> Response:
    return Response(text, media_type="text/csv")
