"""Catalogues: an index of a run by which its sessions are filtered, sorted and searched."""

from trajgym.trajectory.catalog._catalog import Catalog, Page, Progress, SessionFilter, SortBy

__all__ = ["Catalog", "Page", "Progress", "SessionFilter", "SortBy"]
