"""Agents of other frameworks as agents here: one module for each framework, which needs that framework and nothing else.

`dragoman.wrap(obj)` chooses the module. `adapter.py` is common to all of them.
"""
