"""Numbers with units: every spelling, decimal against binary, bits against bytes, and what is refused."""

import contextlib
import math

import pytest
from hypothesis import given, strategies as st

from megatile.core.errors import MegatileError, QuantityError
from megatile.core.quantities import (
    BY_CYCLE,
    LIMITS,
    UNITS,
    Quantity,
    format_bytes,
    format_rate,
    format_time,
    quantity,
    size,
)

DECIMAL = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


@pytest.mark.parametrize(("prefix", "factor"), {"": 1.0, **DECIMAL, **BINARY}.items())
def test_sizes_and_rates_with_every_prefix(prefix: str, factor: float) -> None:
    assert quantity(f"3 {prefix}B") == Quantity(3 * factor, "bytes")
    assert quantity(f"8 {prefix}b") == Quantity(factor, "bytes")
    assert quantity(f"3 {prefix}B/s") == Quantity(3 * factor, "bytes/s")
    assert quantity(f"8 {prefix}b/s") == Quantity(factor, "bytes/s")


@pytest.mark.parametrize(("prefix", "factor"), DECIMAL.items())
def test_throughputs_with_every_prefix(prefix: str, factor: float) -> None:
    assert quantity(f"2 {prefix}Hz") == Quantity(2 * factor, "Hz")
    for operation in ("FLOP", "OP"):
        assert quantity(f"2 {prefix}{operation}/s") == Quantity(2 * factor, "ops/s")
        assert quantity(f"2 {prefix}{operation}S") == Quantity(2 * factor, "ops/s")
    assert quantity(f"2 {prefix}MAC/s") == Quantity(4 * factor, "ops/s"), "a MAC is two operations"


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("450 GB/s", 450e9, "bytes/s"),
        ("400 Gb/s", 50e9, "bytes/s"),
        ("400 Gbps", 50e9, "bytes/s"),
        ("25 GBps", 25e9, "bytes/s"),
        ("25 GB/sec", 25e9, "bytes/s"),
        ("228 KiB", 233472, "bytes"),
        ("80 GB", 80e9, "bytes"),
        ("128 B/cycle", 128, "bytes/cycle"),
        ("128 B/clk", 128, "bytes/cycle"),
        ("32 b/cycle", 4, "bytes/cycle"),
        ("1 KiB/cycle", 1024, "bytes/cycle"),
        ("512 MAC/cycle", 1024, "ops/cycle"),
        ("256 FLOP/cycle", 256, "ops/cycle"),
        ("1 ps", 1, "time"),
        ("12 ns", 12_000, "time"),
        ("3 us", 3e6, "time"),
        ("3 µs", 3e6, "time"),
        ("2 ms", 2e9, "time"),
        ("1 s", 1e12, "time"),
        ("34 cycles", 34, "cycles"),
        ("1 cycle", 1, "cycles"),
        ("34.2 clks", 34.2, "cycles"),
        ("85 %", 0.85, "share"),
        ("1.83 GHz", 1.83e9, "Hz"),
    ],
)
def test_examples(text: str, value: float, dimension: str) -> None:
    found = quantity(text)
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.dimension == dimension
    assert str(found) == text


def test_decimal_and_binary_differ() -> None:
    assert quantity("1 KiB").value - quantity("1 kB").value == 24
    assert quantity("1 GiB").value > quantity("1 GB").value


@pytest.mark.parametrize(
    "text", ["450GB/s", " 450 GB/s ", "450  GB/s", "4.5e2 GB/s", "450. GB/s", "4_50 GB/s"]
)
def test_spellings_of_one_quantity(text: str) -> None:
    assert quantity(text) == quantity("450 GB/s")


def test_case_is_kept_apart() -> None:
    assert quantity("1 Gb/s").value * 8 == quantity("1 GB/s").value


@pytest.mark.parametrize(
    ("text", "dimension", "message", "advice"),
    [
        ("450", "bytes/s", "'450' has no unit", "write it like 450 GB/s"),
        ("34", "time", "'34' has no unit", "12 ns or 34 cycles"),
        ("34", None, "'34' has no unit", "450 GB/s, 12 ns or 228 KiB"),
        ("450 gb/s", "bytes/s", "unit 'gb/s' in '450 gb/s' is unknown", "did you mean"),
        ("450 GB/ss", "bytes/s", "unit 'GB/ss'", "did you mean 'GB/s'?"),
        ("5 parsec", "time", "unit 'parsec'", "write it like 12 ns"),
        ("12 ns", "bytes", "'12 ns' is a time, but a size is needed", "228 KiB or 80 GB"),
        ("12 KiB", "time", "'12 KiB' is a size, but a time is needed", "12 ns or 34 cycles"),
        ("12 cycles", "bytes/s", "is a number of cycles, but a rate is needed", "B/cycle"),
        ("-4 GB", "bytes", "must be finite and not negative", "write 4 GB"),
        ("1e999 GB", "bytes", "must be finite", "228 KiB"),
        ("1e308 GB", "bytes", "is more than 8 EB, the most for a size", "228 KiB"),
        ("GB", "bytes", "is not a number with a unit", "228 KiB"),
        ("", "bytes", "is not a number with a unit", "228 KiB"),
        ("nan GB", "bytes", "is not a number with a unit", "228 KiB"),
        (".inf", "bytes", "is not a number with a unit", "228 KiB"),
        (True, "bytes", "True is not a quantity", "228 KiB"),
        (None, "bytes", "None is not a quantity", "228 KiB"),
        ([1], None, "[1] is not a quantity", "450 GB/s"),
    ],
)
def test_refusals_say_what_and_how(text: object, dimension: str | None, message: str, advice: str) -> None:
    with pytest.raises(QuantityError) as caught:
        quantity(text, dimension)  # type: ignore[arg-type]
    assert message in caught.value.message
    assert advice in str(caught.value.advice)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("450 gB/s", "GB/s"), ("1.8 ghz", "GHz"), ("228 kiB", "KiB"), ("1 Tflop/s", "TFLOP/s")],
)
def test_wrong_case_is_put_right(wrong: str, right: str) -> None:
    with pytest.raises(QuantityError) as caught:
        quantity(wrong)
    assert f"did you mean '{right}'?" in str(caught.value)


def test_a_plain_number_is_a_share_or_zero() -> None:
    assert quantity(0.85, "share").value == 0.85
    assert quantity(0, "time") == Quantity(0, "time")
    with pytest.raises(QuantityError, match="no unit"):
        quantity(0)


def test_the_form_per_cycle_is_taken_where_a_rate_is_needed() -> None:
    for dimension, per_cycle in BY_CYCLE.items():
        unit = next(u for u, (kind, _) in UNITS.items() if kind == per_cycle)
        assert quantity(f"2 {unit}", dimension).dimension == per_cycle


def test_a_quantity_passes_through() -> None:
    rate = quantity("450 GB/s")
    assert quantity(rate, "bytes/s") is rate
    with pytest.raises(QuantityError, match="a size is needed"):
        quantity(rate, "bytes")


def test_numbers_beyond_printing_are_refused() -> None:
    with pytest.raises(QuantityError, match="digits"):
        quantity(10**5000, "bytes")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1GiB", 2**30),
        ("64 kB", 64_000),
        (4096, 4096),
        ("4096", 4096),
        ("8 b", 1),
        (0, 0),
        ("0 B", 0),
        ("256M", 2**28),
        ("64k", 65536),
        ("1.5 G", 3 << 29),
        ("256MB", 256_000_000),
    ],
)
def test_size(text: str | int, count: int) -> None:
    assert size(text) == count
    assert isinstance(size(text), int)


@pytest.mark.parametrize(
    "text", [-1, 2.5, True, "12 ns", "²", "9" * 5000, "-3", "1 GB/s", "32 Mb", "1.5", "M"]
)
def test_size_refuses(text: object) -> None:
    with pytest.raises(QuantityError):
        size(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_bytes(233472), "228 KiB"),
        (format_bytes(2**30), "1 GiB"),
        (format_bytes(12), "12 B"),
        (format_time(13_030_000), "13.03 µs"),
        (format_time(500), "500 ps"),
        (format_time(2e12), "2 s"),
        (format_rate(450e9), "450 GB/s"),
        (format_rate(989e12, "FLOP/s"), "989 TFLOP/s"),
        (format_rate(3), "3 B/s"),
    ],
)
def test_printing(shown: str, text: str) -> None:
    assert shown == text


@given(st.floats(0, 1e9, allow_subnormal=False), st.sampled_from(sorted(UNITS)))
def test_number_and_unit_multiply(number: float, unit: str) -> None:
    dimension, factor = UNITS[unit]
    least, most, *_ = LIMITS[dimension]
    if number and not least <= number * factor <= most:
        with pytest.raises(QuantityError, match=r"is (less|more) than"):
            quantity(f"{number!r} {unit}")
        return
    found = quantity(f"{number!r} {unit}")
    assert found.dimension == dimension
    assert math.isclose(found.value, number * factor, rel_tol=1e-12)
    assert quantity(str(found)) == found


@given(st.text(max_size=20), st.sampled_from([None, "bytes", "bytes/s", "time", "Hz", "ops/s", "share"]))
def test_any_text_is_read_or_refused(text: str, dimension: str | None) -> None:
    for read in (lambda: quantity(text, dimension), lambda: size(text)):
        with contextlib.suppress(MegatileError):
            read()


@given(st.integers(0, 2**60))
def test_printed_bytes_are_near(count: int) -> None:
    assert quantity(format_bytes(count), "bytes").value == pytest.approx(count, rel=1e-3)
