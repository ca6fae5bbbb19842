"""Colours, style sheet and descriptions of metrics that all pages and figures share.

Colours are Okabe and Ito's, which colour-blind readers can distinguish; shapes repeat them.
"""

from importlib import resources

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
# What would drown in a dark page, and what stands there instead: ink, paper, grid and dark blue.
ON_DARK = {BLACK: "#E6E9ED", "#FFFFFF": "#1B2129", "#DDDDDD": "#343C46", BLUE: "#4AA3DF"}
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
MEANINGS = {
    "ter": "the share of test samples the global model gets wrong; lower is better",
    "asr": "the share of triggered test samples sent where the attacker wants; lower is better",
    "rmse": "the root of the mean squared test error; lower is better",
}
SHARES = ("ter", "asr")  # metrics between 0 and 1


def style_sheet() -> str:
    """Return the CSS that every page begins with."""
    return (
        resources.files("secureafl.presentation").joinpath("style.css").read_text(encoding="utf-8")
    )
