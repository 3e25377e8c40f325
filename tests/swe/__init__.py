"""Tests of SWE tasks."""
