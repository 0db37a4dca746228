"""Language models behind one protocol (`model.py`): hosted, embedded, scripted."""
