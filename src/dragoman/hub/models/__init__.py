"""Language models behind one protocol (`hub/model.py`): hosted, embedded, scripted."""
