"""Hundreds of faults, and an independent record of every token. `python -m chaos_parts` runs them (see `__main__`).

engine.py         an SGLang-shaped engine over bare sockets that records what it samples, and lies on request
engine_faults.py  faults of its answers and connections
load.py           a well-behaved agent, and slime's calls around it
book.py           trained tokens compared with the engine's record
answers.py, fleet.py, agents.py, kills.py, intruders.py, soak.py    one part each
trials.py         a part's trials, each in a separate process with a deadline
report.py         the table
"""
