"""What `shoal train` does around a training: settings, plan, data, the screen while it runs, and its result.

presets.py     what is run unless an option says otherwise        (without PyTorch)
recipes.py     from options to the configuration of a run
preview.py     the plan in words, and how long it would take
loading.py     the data, with a bar while files are downloaded
watching.py    the rounds, with a live view, until the last one or Ctrl-C
result.py      epsilon by every accountant, pictures, the last table
session.py     from the first round to the result
"""
