"""A citation is worth something only when the scenario exists: the count of covered rows rests on it."""

from tests.conformance.report import areas, citations, short, table, unknown


def test_every_cited_scenario_exists() -> None:
    known = [name for ids in areas().values() for name in ids]
    assert unknown(citations(), known) == []
    assert len(known) == len(set(known)), "an id stands in ids.txt twice"


def test_a_citation_of_no_scenario_is_reported_with_its_place(tmp_path) -> None:
    name = "-".join(("POL", "999"))  # put together, or it would be a citation here
    (tmp_path / "test_x.py").write_text(f'"""UTF-8 is no scenario."""\n# {name}\n')
    assert unknown(citations(tmp_path), ["other"]) == [f"test_x.py:2: cites {name}, which is no scenario"]


def test_the_table_counts_each_area_and_names_what_is_missing() -> None:
    known = {"First": ["a-1", "a-2", "b-1"], "Next one": ["c-1"]}
    assert table(known, ["a-2", "c-1"]) == [
        "First       1/3    not yet: a-1 b-1",
        "Next one    1/1",
        "all         2/4",
    ]
    assert short(["a-1", "a-2", "b-1", "a-3"]) == "a-1 2 b-1 a-3"
