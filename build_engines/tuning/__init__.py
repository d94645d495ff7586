"""The parts of `python -m build_engines tune`, which `build_engines/tune.py` puts together.

settings.py   what is tuned, and which settings are tried
entry.py      finding a model's entry, reading its configurations, copying it for a trial
servers.py    a Triton that serves a setting: one of our own for each, or a running one that loads it
load.py       clients in a closed loop, which check every answer
choice.py     which setting is the best, and whether that is more than noise
trial.py      the measurements of one run, in their order
report.py     the table and the JSON; plot.py the plot
"""
