"""Format numbers as text, the same way in all tables and sentences."""

from poslab.comparison.statistics import Interval

DASH = "–"
MOST_DECIMALS = 4


def number(value: float | None) -> str:
    """A number with three significant digits; a dash for None."""
    if value is None:
        return DASH
    if value and not 1e-3 <= abs(value) < 1e6:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def exactly(value: float) -> str:
    """A number with all digits, so that it can be read back exactly; integers without a decimal point."""
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def percent(value: float | None) -> str:
    """A share in per cent. It has enough decimals that only a share of 1 is shown as 100 %, and only 0 as 0 %."""
    return DASH if value is None else f"{_rounded(value, _decimals(value))} %"


def _decimals(share: float) -> int:
    """Number of decimals: one, or the fewest with which a share between 0 and 1 is not shown as 0 or 100 %."""
    if 0 < share < 1:
        for decimals in range(1, MOST_DECIMALS):
            if 0 < round(100 * share, decimals) < 100:
                return decimals
        return MOST_DECIMALS
    return 1


def _rounded(share: float, decimals: int) -> str:
    below_all = 100 - 10**-MOST_DECIMALS
    return f"{min(100 * share, below_all) if share < 1 else 100 * share:.{decimals}f}"


def factor(value: float) -> str:
    """A factor with two significant digits: 1.9x, 24x, 2,600x."""
    if value >= 1e6:
        return "over 1,000,000x"
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}x" if rounded >= 10 else f"{value:.2f}x" if value < 1.095 else f"{value:.1f}x"


def times(value: float) -> str:
    """A ratio with three significant digits below ten: 1.39x, 0.72x, 24x."""
    return f"{value:.2f}x" if 0.095 <= value < 9.995 else f"{value:.2g}x" if value < 1 else factor(value)


def p_value(p: float) -> str:
    """A p value with two significant digits: p = 0.012, p < 0.001."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.995 else "p = 1"


def share_interval(interval: Interval | None) -> str:
    """A mean share and its interval, cut to [0, 1]; without the interval if all values are equal."""
    if interval is None:
        return DASH
    if interval.low is None or interval.high is None or interval.low == interval.high:
        return percent(interval.mean)
    low, high = max(0.0, interval.low), min(1.0, interval.high)
    # The same number of decimals for all three; otherwise the rounded mean could be outside the rounded interval.
    decimals = max(map(_decimals, (interval.mean, low, high)))
    mean, low_text, high_text = (_rounded(share, decimals) for share in (interval.mean, low, high))
    return f"{mean} % [{low_text}, {high_text}]"


def interval_text(interval: Interval | None) -> str:
    """A mean and its interval; without the interval if all values are equal."""
    if interval is None:
        return DASH
    if interval.low is None or interval.high is None or interval.low == interval.high:
        return number(interval.mean)
    return f"{number(interval.mean)} [{_roughly(interval.low)}, {_roughly(interval.high)}]"


def _roughly(value: float) -> str:
    """The end of an interval, with two significant digits if it is below 100."""
    return number(float(f"{value:.2g}")) if abs(value) < 100 else number(value)


def count(n: int, what: str) -> str:
    """A number with its noun in singular or plural: 1 seed, 3 seeds."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
