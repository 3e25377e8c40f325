"""Plots of a run: their data, which any front end can draw, and files drawn by matplotlib."""

from trajgym.rollout.plots._counting import PlotCount, plot_data
from trajgym.rollout.plots._data import Plot, Series
from trajgym.rollout.plots._draw import draw_plots
from trajgym.rollout.plots._plots import PLOTS

__all__ = ["PLOTS", "Plot", "PlotCount", "Series", "draw_plots", "plot_data"]
