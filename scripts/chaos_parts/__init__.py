"""Faults by the hundred, and an independent record of every token. `python -m chaos_parts` runs them (see `__main__`).

engine.py         an SGLang-shaped engine over bare sockets that writes down what it samples, and lies on request
engine_faults.py  the ways in which its answers and connections break
load.py           the well-behaved agent, and slime's calls around it
book.py           trained tokens compared with the engine's record
answers.py, fleet.py, agents.py, kills.py, intruders.py, soak.py    one part each
trials.py         a part's trials, each in a process of its own with a deadline
report.py         the table
"""
