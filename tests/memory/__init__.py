"""Tests of memory: what is learnt, found, shown and measured."""
