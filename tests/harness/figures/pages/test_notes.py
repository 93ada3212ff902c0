"""What is said of several runs is said once."""

from harness.figures.pages.notes import shared_notes


def test_what_all_say_stands_alone_and_the_rest_with_its_runs() -> None:
    drawn = "lengths drawn"
    notes = {"a": [drawn, "of 3 plans"], "b": [drawn, "of 4.5 plans"], "c": [drawn, "overloaded"]}
    assert shared_notes(notes) == [drawn, "of 3 plans (a; similar for 1 other run)", "c: overloaded"]
    assert shared_notes({"a": [drawn], "b": [drawn], "c": []}) == [f"{drawn} (a; the same for 1 other run)"]
    assert shared_notes({}) == []
