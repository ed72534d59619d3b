"""Loaded by the process from which the computing ones are forked: all of them inherit what is set up once."""

from shoal.web import tasks

tasks.warm_up()
