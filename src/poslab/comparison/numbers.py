"""Numbers as text, the same way in every table and sentence."""

from poslab.comparison.statistics import Interval

DASH = "–"
MOST_DECIMALS = 4


def number(value: float | None) -> str:
    """Three significant digits; a dash for none."""
    if value is None:
        return DASH
    if value and not 1e-3 <= abs(value) < 1e6:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def exactly(value: float) -> str:
    """Every digit a table needs to be read back without loss; a whole number without a point."""
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def percent(value: float | None) -> str:
    """A share as per cent, rounded, with as many decimals as it takes: 100 % means all of them, 0 % none."""
    return DASH if value is None else f"{_rounded(value, _decimals(value))} %"


def _decimals(share: float) -> int:
    """One, or the fewest with which a share that is neither none nor all does not look like it."""
    if 0 < share < 1:
        for decimals in range(1, MOST_DECIMALS):
            if 0 < round(100 * share, decimals) < 100:
                return decimals
        return MOST_DECIMALS
    return 1


def _rounded(share: float, decimals: int) -> str:
    nearly = 100 - 10**-MOST_DECIMALS
    return f"{min(100 * share, nearly) if share < 1 else 100 * share:.{decimals}f}"


def factor(value: float) -> str:
    """1.9x, 24x, 2,600x; two significant digits."""
    if value >= 1e6:
        return "over 1,000,000x"
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}x" if rounded >= 10 else f"{value:.2f}x" if value < 1.095 else f"{value:.1f}x"


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.995 else "p = 1"


def share_interval(interval: Interval | None) -> str:
    """A mean share and its interval, cut to what a share can be; no interval where all values are the same."""
    if interval is None:
        return DASH
    if interval.low is None or interval.high is None or interval.low == interval.high:
        return percent(interval.mean)
    low, high = max(0.0, interval.low), min(1.0, interval.high)
    # All three alike, so that the mean is never outside the interval it belongs to.
    decimals = max(map(_decimals, (interval.mean, low, high)))
    mean, low_text, high_text = (_rounded(share, decimals) for share in (interval.mean, low, high))
    return f"{mean} % [{low_text}, {high_text}]"


def interval_text(interval: Interval | None) -> str:
    """A mean and its interval; no interval where all values are the same."""
    if interval is None:
        return DASH
    if interval.low is None or interval.high is None or interval.low == interval.high:
        return number(interval.mean)
    return f"{number(interval.mean)} [{_roughly(interval.low)}, {_roughly(interval.high)}]"


def _roughly(value: float) -> str:
    """The end of an interval: two digits are more than it is good for."""
    return number(float(f"{value:.2g}")) if abs(value) < 100 else number(value)


def count(n: int, what: str) -> str:
    """3 seeds, 1 seed."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
