"""How numbers are written."""

from __future__ import annotations

from ui.numbers import (
    DASH,
    acceptance_length_number,
    acceptance_rate_number,
    speed_number,
    speedup_number,
    ttft_number,
)


def test_a_slowdown_is_as_plain_as_a_speedup() -> None:
    assert (speedup_number(0.93, "").value, speedup_number(0.93, "").label) == ("0.93×", "slower with the draft")  # noqa: RUF001
    assert (speedup_number(2.1, "").value, speedup_number(2.1, "").label) == ("2.10×", "faster with the draft")  # noqa: RUF001


def test_where_there_is_no_number_there_is_a_dash() -> None:
    numbers = (
        speedup_number(None, "speedup"),
        speed_number("speed", "EAGLE-3", None),
        ttft_number(None),
        acceptance_length_number(None),
        acceptance_rate_number(None),
    )
    assert {number.value for number in numbers} == {DASH}
    assert all(number.tip for number in numbers)
