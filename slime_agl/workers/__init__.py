"""Executions in other processes: a fleet of workers behind the interface of one runtime."""
